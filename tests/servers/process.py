"""Start, recognise, signal and stop server processes."""

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

_PROC = Path("/proc")
# "$0" is the log. The shell ends at once, so init adopts and reaps the server: whoever called this, a
# test-suite that kills servers included, never has to wait for a child.
_LAUNCHER = '"$@" >>"$0" 2>&1 & echo $!'


class Cancelled(Exception):
    """The program was told to stop while it was providing servers."""


class StepFailed(Exception):
    """A step of providing a server failed; the message says what to do about it."""


def unprivileged_user() -> str:
    """Return the account for servers that refuse to run as root; empty when there is no need to switch."""
    if os.geteuid() != 0:
        return ""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def user_options(user: str) -> dict[str, Any]:
    """Return the options of `subprocess` that run a command as `user`."""
    if not user or os.geteuid() != 0:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def run_logged(
    command: list[str],
    log: Path,
    cancel: Event,
    *,
    stdin: Path | None = None,
    user: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a command with its output appended to `log`; raise StepFailed when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output, (stdin or Path(os.devnull)).open() as source:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        child = subprocess.Popen(
            command,
            stdin=source,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=env and {**os.environ, **env},
            # A Ctrl-C of the terminal must not interrupt dpkg halfway; `cancel` ends it in order.
            start_new_session=True,
            **user_options(user),
        )
        _wait_or_cancel(child, cancel)
    if child.returncode:
        raise StepFailed(f"{command[0]} failed with code {child.returncode}, see {log}")


def _wait_or_cancel(child: subprocess.Popen[bytes], cancel: Event) -> None:
    while child.poll() is None:
        if cancel.wait(0.05):
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            raise Cancelled


def launch(command: list[str], log: str, base: str, user: str) -> int:
    """Start a daemon in a session of its own and return its process id."""
    # The environment of a test-suite may hold PGDATA, MYSQL_HOME and the like.
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": base, "LC_ALL": "C"}
    result = subprocess.run(
        ["/bin/sh", "-c", _LAUNCHER, log, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        cwd=base,
        env=env,
        start_new_session=True,
        **user_options(user),
    )
    return int(result.stdout)


def command_line(pid: int) -> str:
    """Return the command line of a process; empty for one that is gone or a zombie."""
    if pid <= 0:
        return ""
    if _PROC.joinpath("self").exists():
        try:
            return _PROC.joinpath(str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
    shown = subprocess.run(
        ["ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return "" if shown.startswith("Z") else shown


def is_server(pid: int, marker: str) -> bool:
    """Tell whether `pid` is the live process whose command line holds `marker`."""
    return bool(marker) and marker in command_line(pid)


def is_gone(pid: int, marker: str) -> bool:
    """Tell whether nothing is left of a server; a killed one keeps its locks until its last thread ends."""
    if shown := command_line(pid):
        return marker not in shown
    try:
        threads = list(_PROC.joinpath(str(pid), "task").iterdir())
        state = _PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    # In any other state it has no command line because it is just being replaced by its program.
    return state in "ZX" and len(threads) <= 1


def _parents() -> dict[int, int]:
    if not _PROC.joinpath("self").exists():
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        return {int(pid): int(parent) for pid, parent in map(str.split, listing.stdout.splitlines())}
    found = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            # The process name, in parentheses, may hold anything, blanks and parentheses too.
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def family(pid: int) -> list[int]:
    """Return a process and its children: PostgreSQL serves each connection in a process of its own."""
    return [pid, *(child for child, parent in _parents().items() if parent == pid)]


def send(pids: list[int], sig: signal.Signals) -> None:
    """Send a signal to those of the processes that are still there."""
    for pid in pids:
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            continue


def comes_true(condition: Callable[[], bool], timeout_seconds: float, interval: float = 0.05) -> bool:
    """Whether `condition` holds before the time is up."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def kill_family(pid: int, marker: str) -> None:
    """Kill a server and its children at once, paused ones too."""
    if not is_server(pid, marker):
        return
    # Stopped first, so that no child is born between listing them and killing them.
    send([pid], signal.SIGSTOP)
    members = family(pid)
    send(members, signal.SIGKILL)
    comes_true(lambda: is_gone(pid, marker) and not any(command_line(member) for member in members), 20)


def tail(log: str, lines: int = 20) -> str:
    """Return the end of a log file."""
    try:
        return "\n".join(Path(log).read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
