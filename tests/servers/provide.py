"""Provide the servers, each the first way that works, and take them down again."""

import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from subprocess import SubprocessError
from threading import Event
from urllib.parse import urlsplit

from tests.servers import binaries, docker, engines, net, packages
from tests.servers.process import (
    Cancelled,
    StepFailed,
    comes_true,
    family,
    is_gone,
    is_server,
    kill_family,
    launch,
    send,
    tail,
)
from tests.servers.state import Record, StateDir, url_variable

_READY_TIMEOUT_SECONDS = 300
_PORT_ATTEMPTS = 4
_PORT_TAKEN = "already in use"


class StartFailed(Exception):
    """A server could not be initialised, ended early or did not get ready in time."""

    def __init__(self, reason: str, log: str) -> None:
        """Take a reason of one line and the end of the server's log."""
        super().__init__(f"{reason}; the end of its log:\n{log}")
        self.reason = reason
        self.log = log


@dataclass
class Outcome:
    """Which servers are there, and why others are not."""

    records: dict[str, Record] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class Provider:
    """Provides the servers of one state directory."""

    state: StateDir
    install: bool = True
    say: Callable[[str], None] = print
    cancel: Event = field(default_factory=Event)

    def up(self, kinds: list[str]) -> Outcome:
        """Start what is missing of `kinds`, all at the same time, and say what came of it."""
        self.state.prepare()
        outcome = Outcome()
        # Before the threads: each asks an engine that may take seconds not to answer.
        use_docker = any(not os.environ.get(url_variable(kind)) for kind in kinds) and docker.available()
        with ThreadPoolExecutor(len(kinds)) as pool:
            try:
                tasks = {kind: pool.submit(self._attempt, kind, use_docker) for kind in kinds}
                results = {kind: task.result() for kind, task in tasks.items()}
            except BaseException:
                self.cancel.set()
                raise
        for kind, result in results.items():
            if isinstance(result, Record):
                outcome.records[kind] = result
                self.say(f"{kind}: {result.version}, port {result.port}, {result.provided}")
            else:
                outcome.missing[kind] = result
                self.say(f"not provided: {kind}: {result}")
        self.state.write_env()
        return outcome

    def _attempt(self, kind: str, use_docker: bool) -> Record | str:
        try:
            record = self._provide(kind, use_docker)
        except (StepFailed, StartFailed, OSError, SubprocessError) as error:
            reason = str(error)
            if isinstance(error, StartFailed):
                reason = error.reason
                self.say(f"{kind}: {error}")
            if kind in self.state.records():
                self.down([kind])
            return reason
        self.state.save(record)
        return record

    def _provide(self, kind: str, use_docker: bool) -> Record:
        known = self.state.records().get(kind)
        url = os.environ.get(url_variable(kind), "")
        if url and not (known and known.provided != "environment" and known.url == url):
            if known:
                self.down([kind])
            port = urlsplit(url).port or 0
            return Record(kind, "environment", url=url, port=port, version="version not asked")
        if known and known.owned and is_server(known.pid, known.marker):
            # It may have been left paused.
            send(family(known.pid), signal.SIGCONT)
            if net.ready_version(kind, known.port):
                return known
        if known:
            self.down([kind])
        return docker.start(kind) if use_docker else self._provide_own(kind)

    def _provide_own(self, kind: str) -> Record:
        program, provided = binaries.find(kind), "binaries found"
        if program is None:
            program, provided = self._installed(kind), "installed"
        if program.root:
            provided += f" in {program.root}"
        record = engines.new_record(kind, program, provided)
        # Saved before anything runs: whatever happens next, `down` knows what to remove.
        self.state.save(record)
        try:
            engines.initialise(record, program, self.cancel)
        except StepFailed as error:
            raise StartFailed("a new data directory could not be made", tail(record.log)) from error
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            engines.assign_port(record, program, net.free_port())
            try:
                start(self.state, record, self.cancel)
                return record
            except StartFailed as error:
                if attempt == _PORT_ATTEMPTS or _PORT_TAKEN not in error.log:
                    raise
        raise AssertionError

    def _installed(self, kind: str) -> binaries.Program:
        name, variable = packages.package(kind), url_variable(kind)
        if not self.install:
            raise StepFailed(f"no program found and --install is never: install {name} or set {variable}")
        if not packages.can_install():
            raise StepFailed(
                f"no program found, and only root of Debian or Ubuntu can have it installed from "
                f"here: install {name} or set {variable}"
            )
        return packages.install(kind, self.state.install_log, self.cancel)

    def down(self, kinds: list[str] | None = None) -> list[str]:
        """Stop what was started, all of it or some kinds, remove its data and return its kinds."""
        stopped = []
        for kind, record in self.state.records().items():
            if kinds is not None and kind not in kinds:
                continue
            if record.owned:
                _end(record)
                shutil.rmtree(record.base, ignore_errors=True)
                stopped.append(kind)
            elif record.provided == docker.STARTED:
                docker.stop(kind)
                stopped.append(kind)
            self.state.remove(kind)
        if kinds is None:
            self.state.clear()
        return stopped


def _end(record: Record) -> None:
    if record.kind == "postgres" and is_server(record.pid, record.marker):
        # Killed, it would leave its shared memory behind on the machine.
        send(family(record.pid), signal.SIGCONT)
        send([record.pid], signal.SIGQUIT)
        comes_true(lambda: is_gone(record.pid, record.marker), 10)
    kill_family(record.pid, record.marker)


def start(state: StateDir, record: Record, cancel: Event | None = None, *, command: list[str] | None = None) -> None:
    """Start a server by its record's command, or another one; save its process id and wait until it is ready."""
    log_size = _size(record.log)
    record.pid = launch(command or record.command, record.log, record.base, record.user)
    state.save(record)

    def settled() -> bool:
        if cancel and cancel.is_set():
            raise Cancelled
        if is_gone(record.pid, record.marker):
            return True
        version = net.ready_version(record.kind, record.port)
        # The port may have gone to another server since it was found free.
        if version and net.listens(record.pid, record.port):
            record.version = record.version if version == "ready" else version
            return True
        return False

    in_time = comes_true(settled, _READY_TIMEOUT_SECONDS, 0.1)
    if in_time and is_server(record.pid, record.marker):
        return
    kill_family(record.pid, record.marker)
    problem = "ended while starting" if in_time else f"was not ready after {_READY_TIMEOUT_SECONDS} s"
    with open(record.log, errors="replace") as log:
        log.seek(log_size)
        lines = log.read().splitlines()[-20:]
    raise StartFailed(f"{record.command[0]} {problem}", "\n".join(lines))


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0
