"""Command line: `python -m tests.servers up|down|status|run`."""

import argparse
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from tests.servers.process import is_server
from tests.servers.provide import Outcome, Provider
from tests.servers.state import DEFAULT_STATE_DIR, KINDS, MISSING_VARIABLE, StateDir, file_lock

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_SECONDS = 20


class Interrupted(BaseException):
    """A signal asked this program to stop."""

    def __init__(self, signum: int) -> None:
        """Remember the signal."""
        self.signum = signum


class Signals:
    """Turns the first signal into Interrupted; ignores the rest, lest they cut cleaning up short."""

    def __init__(self) -> None:
        """Install the handlers."""
        self.armed = True
        for sig in _SIGNALS:
            # nohup has SIGHUP ignored and means it.
            if sig != signal.SIGHUP or signal.getsignal(sig) != signal.SIG_IGN:
                signal.signal(sig, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.armed:
            self.armed = False
            raise Interrupted(signum)


def _kinds(text: str) -> list[str]:
    kinds = [kind for kind in text.split(",") if kind]
    if not kinds or not set(kinds) <= set(KINDS):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(KINDS)}")
    return kinds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description="Private servers for the tests.")
    commands = parser.add_subparsers(dest="action", required=True)
    texts = {
        "up": "start what is missing",
        "down": "stop everything that was started and remove its data",
        "status": "show the servers",
        "run": "up, run a command with the servers' URLs in its environment, down",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--state", type=Path, default=DEFAULT_STATE_DIR, metavar="DIR")
        if name in ("up", "run"):
            command.add_argument("--only", type=_kinds, default=list(KINDS), metavar="KIND,...")
            command.add_argument("--install", choices=("auto", "never"), default="auto")
        if name == "run":
            command.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...")
    return parser


def _unacceptable(outcome: Outcome) -> bool:
    if not outcome.missing or os.environ.get("CI") != "true":
        return False
    print("CI=true: all servers are required", file=sys.stderr)
    return True


def _up(state: StateDir, options: argparse.Namespace) -> int:
    signals = Signals()
    provider = Provider(state, install=options.install == "auto")
    try:
        return int(_unacceptable(provider.up(options.only)))
    except Interrupted as error:
        provider.down()
        return 128 + error.signum
    finally:
        signals.armed = False


def _down(state: StateDir) -> int:
    for kind in Provider(state).down():
        print(f"{kind}: stopped")
    return 0


def _status(state: StateDir) -> int:
    records = state.records()
    for kind, record in records.items():
        live = f"pid {record.pid}" if is_server(record.pid, record.marker) else "not running"
        print(f"{kind}: {record.version}, port {record.port}, {record.provided}" + f", {live}" * record.owned)
    if not records:
        print("no servers")
    return 0


def _end(child: subprocess.Popen[bytes], signum: int) -> None:
    # A terminal sends SIGINT to the command as well; a second one would cut its own cleaning up short.
    patience = 10 if signum == signal.SIGINT else 0
    for sig, timeout in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, None)):
        try:
            child.wait(patience)
            return
        except subprocess.TimeoutExpired:
            child.send_signal(sig)
            patience = timeout or 0
    child.wait()


def _command(options: argparse.Namespace, state: StateDir, outcome: Outcome) -> int:
    missing = "; ".join(f"{kind}: {reason}" for kind, reason in outcome.missing.items())
    environment = {**os.environ, **state.environment(), MISSING_VARIABLE: missing}
    try:
        child = subprocess.Popen(options.command, env=environment)
    except OSError as error:
        print(f"cannot run {options.command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    try:
        code = child.wait()
    except Interrupted as error:
        _end(child, error.signum)
        raise
    return 128 - code if code < 0 else code


def _run(state: StateDir, options: argparse.Namespace) -> int:
    # The command's output stays its own.
    provider = Provider(state, install=options.install == "auto", say=lambda line: print(line, file=sys.stderr))
    signals = Signals()
    try:
        outcome = provider.up(options.only)
        return 1 if _unacceptable(outcome) else _command(options, state, outcome)
    except Interrupted as error:
        return 128 + error.signum
    finally:
        signals.armed = False
        provider.down()


def main() -> int:
    """Run the command line and return the exit code."""
    parser = _parser()
    options = parser.parse_args()
    state = StateDir(options.state)
    if options.action == "status":
        return _status(state)
    if options.action == "run":
        options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
        if not options.command:
            parser.error("run needs a COMMAND")
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(state.run_lock, wait=False))
        except BlockingIOError:
            parser.error(f"{state.directory} is in use by another run; name another one by --state")
        if options.action == "down":
            return _down(state)
        return (_up if options.action == "up" else _run)(state, options)


if __name__ == "__main__":
    sys.exit(main())
