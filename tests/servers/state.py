"""What is known about the servers of one state directory, kept in `state.json`."""

import fcntl
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_STATE_DIR = REPOSITORY / ".servers"
STATE_VARIABLE = "JOBQUEUE_TEST_SERVERS_STATE"
MISSING_VARIABLE = "JOBQUEUE_TEST_MISSING"
KINDS = ("mysql", "mariadb", "postgres", "redis")


def url_variable(kind: str) -> str:
    """Return the name of the environment variable that holds the URL of a server."""
    return f"JOBQUEUE_TEST_{kind.upper()}_URL"


@dataclass
class Record:
    """One server: how it was provided and everything needed to stop or restart it."""

    kind: str
    provided: str
    url: str = ""
    port: int = 0
    version: str = ""
    pid: int = 0
    command: list[str] = field(default_factory=list)
    base: str = ""
    datadir: str = ""
    log: str = ""
    user: str = ""
    # A string only this server's command line holds: process ids are reused, for example after a reboot.
    marker: str = ""

    @property
    def owned(self) -> bool:
        """Tell whether this package runs the server's process itself."""
        return bool(self.base)


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on a file; with `wait=False` raise BlockingIOError when it is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


class StateDir:
    """The records of one state directory."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which is created when something is first written."""
        self.directory = directory.absolute()
        self.install_log = self.directory / "install.log"
        self.run_lock = self.directory / "run.lock"
        self._file = self.directory / "state.json"
        self._env = self.directory / "env"

    def prepare(self) -> None:
        """Create the directory, ignored by git since it holds passwords."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / ".gitignore").write_text("*\n")

    def records(self) -> dict[str, Record]:
        """Return the recorded servers by kind."""
        try:
            servers = json.loads(self._file.read_text())["servers"]
            return {kind: Record(**server) for kind, server in servers.items() if kind in KINDS}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            # A file cut short by a crash, or of another version, must not keep a new start from working.
            return {}

    def save(self, record: Record) -> None:
        """Add or replace one server's record."""
        with file_lock(self.directory / "state.lock"):
            self._write({**self.records(), record.kind: record})

    def remove(self, kind: str) -> None:
        """Forget one server."""
        with file_lock(self.directory / "state.lock"):
            self._write({name: record for name, record in self.records().items() if name != kind})

    def _write(self, records: dict[str, Record]) -> None:
        self.prepare()
        content = {"servers": {kind: asdict(record) for kind, record in records.items()}}
        _write_private(self._file, json.dumps(content, indent=2) + "\n")

    def environment(self) -> dict[str, str]:
        """Return the variables through which the tests find the servers."""
        urls = {url_variable(kind): record.url for kind, record in self.records().items() if record.url}
        return {**urls, STATE_VARIABLE: str(self.directory)}

    def write_env(self) -> None:
        """Write the file `env`, to be sourced by a shell."""
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in self.environment().items()]
        self.prepare()
        _write_private(self._env, "".join(lines))

    def clear(self) -> None:
        """Remove what `write_env` and `save` wrote."""
        self._env.unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)


def _write_private(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        handle.write(text)
    partial.replace(path)
