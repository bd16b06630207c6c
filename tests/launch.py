"""manage.py in a process of its own: by exec, or in a fork of a process that has imported Django already.

The second costs a fifth of the processor time, and the tests start hundreds. Of ours only definitions are loaded ahead:
every process reads its settings, loads the apps and becomes its command by itself, as after exec.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.patience import patient

ROOT = Path(__file__).resolve().parents[1]


def launch(arguments: Sequence[str], env: Mapping[str, str], output: Path, prefix: Sequence[str] = ()) -> Any:
    """A subprocess.Popen, or what behaves like one: manage.py in a session of its own that appends to `output`.

    `prefix` is a program that starts it. With one, or with a PYTHONPATH beyond this checkout, it is started by exec.
    """
    if prefix or env.get("PYTHONPATH") != str(ROOT):
        return by_exec(arguments, env, output, prefix)
    return Forked(arguments, env, output)


def by_exec(arguments: Sequence[str], env: Mapping[str, str], output: Path, prefix: Sequence[str] = ()) -> Any:
    """As an operator's shell does it."""
    with output.open("ab") as sink:
        return subprocess.Popen(
            [*prefix, sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=env,
            stdout=sink,
            stderr=sink,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


class Forked:
    """What tests use of subprocess.Popen, for a process of the fork server."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], output: Path, *, folder: Path = ROOT) -> None:
        """`folder` is the project with the manage.py to run."""
        ready, child_end = _server().Pipe(duplex=False)
        what = (list(arguments), dict(env), str(output), str(folder), child_end)
        self._process = _server().Process(target=_run, args=what, daemon=True)
        self._process.start()
        child_end.close()
        with ready:
            # Before it has its session, a signal to its group would miss it.
            assert ready.poll(patient()), "the fork server has not started a process"
            ready.recv()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """As of Popen: None while it runs, below 0 for a signal."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("manage.py", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To it alone, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()


@cache
def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    return context


def _forget_that_it_was_forked() -> None:
    """Let a job use multiprocessing as in a process that nobody made with it."""
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.current_process()._config["daemon"] = False


def _run(arguments: list[str], env: dict[str, str], output: str, folder: str, ready: Any) -> None:
    os.setsid()
    sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(sink, number)
    os.close(sink)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(folder)
    sys.path[:0] = list(dict.fromkeys([folder, str(ROOT)]))
    sys.argv = ["manage.py", *arguments]
    sys.orig_argv = [sys.executable, *sys.argv]
    _forget_that_it_was_forked()
    ready.send(True)
    ready.close()
    runpy.run_path("manage.py", run_name="__main__")
