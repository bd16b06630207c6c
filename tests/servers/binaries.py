"""Find the servers' programs on this machine."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from glob import glob
from pathlib import Path

_PLACES = {
    "mysql": ["/usr/sbin/mysqld", "/usr/local/mysql/bin/mysqld", "/opt/homebrew/opt/mysql/bin/mysqld"],
    "mariadb": ["/usr/sbin/mariadbd", "/usr/sbin/mysqld", "/opt/homebrew/opt/mariadb/bin/mariadbd"],
    "postgres": [],
    "redis": ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"],
}
_NAMES = {
    "mysql": ["mysqld"],
    "mariadb": ["mariadbd", "mysqld"],
    "postgres": ["postgres"],
    "redis": ["redis-server"],
}
_PACKAGED_POSTGRES = ["/usr/lib/postgresql/*/bin/postgres", "/usr/pgsql-*/bin/postgres"]
COMPLETE_MARK = ".complete"


@dataclass(frozen=True)
class Program:
    """A server's program; with `root` a path inside the system tree below it, run by chroot."""

    path: str
    version: str
    root: Path | None = None


def cache_dir() -> Path:
    """Return the directory that keeps the system trees built for servers this system has no package of."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "jobqueue-servers"


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _candidates(kind: str) -> list[str]:
    packaged = [path for pattern in _PACKAGED_POSTGRES for path in glob(pattern)] if kind == "postgres" else []
    on_path = [found for name in _NAMES[kind] if (found := shutil.which(name))]
    return [*sorted(packaged, key=_number, reverse=True), *on_path, *_PLACES[kind]]


def _version_line(kind: str, path: str, root: Path | None) -> str:
    # The one program of Debian's redis-tools is a server when it is called by that name.
    name = "redis-server" if kind == "redis" else path
    command = ["chroot", str(root), path, "--version"] if root else [name, "--version"]
    try:
        return subprocess.run(
            command,
            executable=None if root else path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _check(kind: str, path: str, root: Path | None = None) -> Program | None:
    line = _version_line(kind, path, root)
    # Debian installs MariaDB as mysqld too.
    wanted = {
        "mysql": "MariaDB" not in line,
        "mariadb": "MariaDB" in line,
        "postgres": "PostgreSQL" in line,
        "redis": "server" in line.lower(),
    }
    number = re.search(r"\d+(\.\d+)+(-MariaDB)?", line)
    if not wanted[kind] or number is None:
        return None
    return Program(path, number.group(), root)


def find(kind: str) -> Program | None:
    """Return the program for a kind of server, or None when this machine has none."""
    for path in _candidates(kind):
        if os.access(path, os.X_OK) and (program := _check(kind, path)):
            return program
    return find_in_tree(kind)


def find_in_tree(kind: str) -> Program | None:
    """Return the program in the kind's complete system tree in the cache, which only root can use."""
    tree = cache_dir() / kind
    if os.geteuid() != 0 or not (tree / COMPLETE_MARK).exists():
        return None
    for path in ("/usr/sbin/mariadbd", "/usr/sbin/mysqld"):
        if (tree / path.lstrip("/")).exists() and (program := _check(kind, path, tree)):
            return program
    return None
