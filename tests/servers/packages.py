"""Install servers on Debian and Ubuntu, as root."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event

from tests.servers.binaries import COMPLETE_MARK, Program, cache_dir, find, find_in_tree
from tests.servers.process import StepFailed, run_logged
from tests.servers.state import file_lock

_PACKAGES = {
    "mysql": "mysql-server-core",
    "mariadb": "mariadb-server-core",
    "postgres": "postgresql",
    "redis": "redis-tools",
}
_LISTS = Path("/var/lib/apt/lists")
_LISTS_MAX_AGE_SECONDS = 24 * 3600
_POLICY = Path("/usr/sbin/policy-rc.d")
_CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.d/jobqueue-tests.conf")


def package(kind: str) -> str:
    """Return the name of the package that holds a kind of server."""
    return _PACKAGES[kind]


def can_install() -> bool:
    """Tell whether this is a system and an account that may install packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def is_ubuntu() -> bool:
    """Tell whether this is Ubuntu, some of whose packages only name a snap."""
    return Path("/etc/os-release").exists() and _os_release().get("ID") == "ubuntu"


def install(kind: str, log: Path, cancel: Event) -> Program:
    """Install a server and return its program."""
    # dpkg allows one at a time; the threads of one program and other programs queue up here.
    with file_lock(cache_dir() / "packages.lock"):
        program = find(kind) or _from_packages(kind, log, cancel)
        if program is None and kind in ("mysql", "mariadb"):
            program = _from_tree(kind, log, cancel)
        if program is None and kind == "redis":
            _apt(["install", "redis-server"], log, cancel)
            program = find(kind)
    if program is None:
        raise StepFailed(f"package {package(kind)} is installed but holds no usable server, see {log}")
    return program


def install_package(name: str, log: Path, cancel: Event) -> None:
    """Install a package that holds no server."""
    if not can_install():
        raise StepFailed(f"only root of Debian or Ubuntu can have {name} installed from here")
    with file_lock(cache_dir() / "packages.lock"):
        _refresh_lists(log, cancel)
        _apt(["install", name], log, cancel)


def _apt(arguments: list[str], log: Path, cancel: Event) -> None:
    # --no-remove: the MySQL and MariaDB packages of Ubuntu exclude each other.
    options = ["-y", "--no-install-recommends", "--no-remove", "-o", "DPkg::Lock::Timeout=300"]
    with _no_services() if "install" in arguments else nullcontext():
        run_logged(["apt-get", *options, *arguments], log, cancel, env={"DEBIAN_FRONTEND": "noninteractive"})


def _refresh_lists(log: Path, cancel: Event) -> None:
    ages = [path.stat().st_mtime for path in _LISTS.glob("*_Packages*")]
    if not ages or time.time() - max(ages) > _LISTS_MAX_AGE_SECONDS:
        _apt(["update"], log, cancel)


@contextmanager
def _no_services() -> Iterator[None]:
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    _CLUSTER_SETTINGS.parent.mkdir(parents=True, exist_ok=True)
    _CLUSTER_SETTINGS.write_text("create_main_cluster = false\n")
    try:
        yield
    finally:
        _CLUSTER_SETTINGS.unlink(missing_ok=True)
        if ours:
            _POLICY.unlink(missing_ok=True)


def _available(kind: str) -> str:
    pattern = rf"^{re.escape(package(kind))}(-[0-9.]+)?$"
    listing = subprocess.run(
        ["apt-cache", "search", "--names-only", pattern], capture_output=True, text=True, check=False
    ).stdout
    names = sorted(line.split()[0] for line in listing.splitlines() if line.strip())
    return package(kind) if package(kind) in names else next(reversed(names), "")


def _from_packages(kind: str, log: Path, cancel: Event) -> Program | None:
    _refresh_lists(log, cancel)
    name = _available(kind)
    if not name:
        return None
    try:
        _apt(["install", name], log, cancel)
    except StepFailed:
        # The other of MySQL and MariaDB may be in the way; a system tree of its own is left to try.
        if kind not in ("mysql", "mariadb"):
            raise
    return find(kind)


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


def _source_entries() -> Iterator[tuple[list[str], list[str]]]:
    base = Path("/etc/apt")
    for path in [base / "sources.list", *sorted(base.glob("sources.list.d/*.list"))]:
        for line in path.read_text().splitlines() if path.exists() else []:
            if found := re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+\S+", line):
                yield [found.group(1)], [found.group(2)]
    for path in sorted(base.glob("sources.list.d/*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE))
            fields = {name.lower(): value.split() for name, value in fields.items()}
            if "deb" in fields.get("types", []) and fields.get("enabled") != ["no"]:
                yield fields.get("uris", []), fields.get("suites", [])


def mirror(codename: str) -> str:
    """Return the mirror apt takes the distribution itself from."""
    for uris, suites in _source_entries():
        if codename in suites and uris:
            uri = uris[0]
            if uri.startswith("mirror+file:"):
                uri = Path(uri.removeprefix("mirror+file:")).read_text().split()[0]
            return uri
    raise StepFailed(f"apt's sources name no mirror of {codename}")


def _remove_tree(tree: Path) -> None:
    # A debootstrap that was killed leaves the system's own /proc mounted inside.
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{tree}/")]):
        subprocess.run(["umount", "--lazy", mount], check=True)
    shutil.rmtree(tree, ignore_errors=True)


def _from_tree(kind: str, log: Path, cancel: Event) -> Program | None:
    release = _os_release()
    codename = release.get("VERSION_CODENAME", "")
    debian = release.get("ID") == "debian"
    # Debian's stable releases have no MySQL, only its unstable one has.
    suite = "sid" if debian else codename
    name = package(kind) if debian else _available(kind) or package(kind)
    if not shutil.which("debootstrap"):
        _apt(["install", "debootstrap"], log, cancel)
    tree = cache_dir() / kind
    partial = tree.with_name(f"{kind}.partial")
    _remove_tree(partial)
    components = [] if debian else ["--components=main,universe"]
    options = ["--variant=minbase", f"--include={name}", *components]
    run_logged(["debootstrap", *options, suite, str(partial), mirror(codename)], log, cancel)
    (partial / COMPLETE_MARK).touch()
    _remove_tree(tree)
    partial.rename(tree)
    return find_in_tree(kind)
