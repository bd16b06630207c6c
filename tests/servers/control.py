"""Break and mend the servers from within tests."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.servers import provide
from tests.servers.process import comes_true, family, is_gone, is_server, kill_family, send
from tests.servers.state import DEFAULT_STATE_DIR, STATE_VARIABLE, Record, StateDir

_STOP_TIMEOUT_SECONDS = 180


class Server:
    """One of the servers; those not started by this package can be looked at but not controlled."""

    def __init__(self, state: StateDir, kind: str) -> None:
        """Describe the server of this kind in a state directory."""
        self._state = state
        self.kind = kind

    def __repr__(self) -> str:
        """Show kind, port and process id."""
        return f"<Server {self.kind} port={self.port} pid={self.pid}>"

    @property
    def _record(self) -> Record:
        # Read anew each time: another process may have restarted the server.
        try:
            return self._state.records()[self.kind]
        except KeyError:
            raise RuntimeError(f"there is no {self.kind} server in {self._state.directory}") from None

    @property
    def url(self) -> str:
        """The URL the tests connect to."""
        return self._record.url

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._record.port

    @property
    def pid(self) -> int:
        """The process id of the last start; 0 for a server that was not started here."""
        return self._record.pid

    @property
    def controllable(self) -> bool:
        """Whether this package started the server."""
        return self._record.owned

    @property
    def running(self) -> bool:
        """Whether the server's process is there, paused or not."""
        record = self._owned()
        return is_server(record.pid, record.marker)

    def _owned(self) -> Record:
        record = self._record
        if not record.owned:
            raise RuntimeError(f"the {self.kind} server was not started here ({record.provided}): cannot control it")
        return record

    def _live(self) -> Record:
        record = self._owned()
        if not is_server(record.pid, record.marker):
            raise RuntimeError(f"the {self.kind} server is not running")
        return record

    def stop(self, sig: signal.Signals = signal.SIGTERM, timeout_seconds: float = _STOP_TIMEOUT_SECONDS) -> None:
        """Stop the server in order; SIGTERM means the same for all: open connections are closed."""
        record = self._live()
        if self.kind == "postgres" and sig == signal.SIGTERM:
            # PostgreSQL's own SIGTERM waits until the last client has gone; SIGINT is what others do.
            sig = signal.SIGINT
        send([record.pid], sig)
        if not comes_true(lambda: is_gone(record.pid, record.marker), timeout_seconds):
            raise TimeoutError(f"the {self.kind} server has not stopped {timeout_seconds} s after {sig!r}")

    def kill(self) -> None:
        """Kill the server and its children by SIGKILL, as a crash of its machine would."""
        record = self._live()
        kill_family(record.pid, record.marker)

    def pause(self) -> None:
        """Stop the server's processes by SIGSTOP: its connections hang."""
        record = self._live()
        # The parent first, so that it has no more children after they were listed.
        send([record.pid], signal.SIGSTOP)
        send(family(record.pid)[1:], signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        record = self._live()
        send(family(record.pid), signal.SIGCONT)

    @property
    def base(self) -> Path:
        """The directory of the server's data, its log and its settings."""
        return Path(self._owned().base)

    def inner(self, path: Path) -> str:
        """The name that a path below `base` has for the server, which may run in a system tree of its own."""
        command = self._owned().command
        return f"/{path.relative_to(command[1])}" if command[0] == "chroot" else str(path)

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the stopped server with the same port, data and settings; wait until it is ready.

        `environment` is only for the server itself, and for this start.
        """
        record = self._owned()
        if is_server(record.pid, record.marker):
            raise RuntimeError(f"the {self.kind} server is running already")
        # The process id in them may meanwhile be another process, or one init has not reaped yet: the
        # servers would refuse to start because of either.
        base = Path(record.base)
        for lock in [base / "data/postmaster.pid", *base.glob(".s.PGSQL.*"), *base.glob("server.sock*")]:
            lock.unlink(missing_ok=True)
        command = list(record.command)
        if environment:
            # Behind chroot, whose own programs would not find a library of the tree.
            place = 2 if command[0] == "chroot" else 0
            command[place:place] = ["/usr/bin/env", *(f"{name}={value}" for name, value in environment.items())]
        provide.start(self._state, record, command=command)

    def restart(self) -> None:
        """Stop the server in order and start it again."""
        self.stop()
        self.start()


def load(state_dir: str | Path | None = None) -> dict[str, Server]:
    """Return the servers by kind; `state_dir` defaults to the one the tests are run with."""
    directory = state_dir or os.environ.get(STATE_VARIABLE) or DEFAULT_STATE_DIR
    state = StateDir(Path(directory))
    return {kind: Server(state, kind) for kind in state.records()}
