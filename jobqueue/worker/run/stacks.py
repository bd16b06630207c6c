"""Where the threads of a child are: it looks twice when the monitor asks, and answers through shared memory.

A stack is told as text that holds no value: for each frame the file, the line and the name of the function.

A thread without a connection does this, so that it works while all others wait for a database. It cannot look while a
job holds the interpreter in C.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple

from django.db import connections

from jobqueue.worker.run.attempt import Attempt, running
from jobqueue.worker.shared.scoreboard import ANSWER_BYTES, StackRequest

#: between the two looks
BETWEEN_SECONDS = 0.5
#: room for what an answer has beside the places
FRAME_BYTES = 1024
#: innermost frames of a stack that are kept
FRAMES_MAX = 25
_UNKNOWN = "<generated>: -"
#: where Django's frames have the connection that they work for
_WRAPPER, _CURSOR = "django/db/backends/base/base.py", "django/db/backends/utils.py"
#: threads without a job, and coroutines and job threads, that are looked at
OTHERS_MAX, JOBS_MAX = 30, 300


class Files:
    """The files of the modules that are imported now.

    Code from exec() or a template is not among them: its file name and the names of its functions may hold any value.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        for module in list(sys.modules.values()):
            # By vars(): some objects in sys.modules import a module when an attribute of theirs is read.
            with suppress(Exception):
                found = vars(module).get("__file__")
                if isinstance(found, str):
                    self._known.add(found)
        self._roots = sorted({path.rstrip("/") + "/" for path in sys.path if path}, key=len, reverse=True)

    def line(self, frame: FrameType) -> str:
        """`package/module.py:12 function`."""
        code: CodeType = frame.f_code
        if code.co_filename not in self._known:
            return _UNKNOWN
        return f"{self._short(code.co_filename)}:{frame.f_lineno or code.co_firstlineno} {code.co_name}"

    def _short(self, name: str) -> str:
        root = next((one for one in self._roots if name.startswith(one)), "")
        return name[len(root) :] if root else "/".join(name.split("/")[-3:])


def of_thread(frame: FrameType | None) -> list[FrameType]:
    """The frames of a thread, the innermost last."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def of_coroutine(task: asyncio.Task[Any]) -> list[FrameType]:
    """The frames of a coroutine that waits, the innermost last; of one that runs now, the outermost alone."""
    found: list[FrameType] = []
    waits_for: Any = task.get_coro()
    while waits_for is not None:
        frame = next(_frames(waits_for), None)
        if frame is not None:
            found.append(frame)
        waits_for = next(
            (getattr(waits_for, name) for name in ("cr_await", "gi_yieldfrom", "ag_await") if hasattr(waits_for, name)),
            None,
        )
    return found


def _frames(awaitable: Any) -> Iterator[FrameType]:
    for name in ("cr_frame", "gi_frame", "ag_frame"):
        if isinstance(frame := getattr(awaitable, name, None), FrameType):
            yield frame


def database_of(frames: Sequence[FrameType]) -> str | None:
    """The alias of the Django connection for which the innermost frames work; None: they work for none."""
    for frame in reversed(frames):
        name = frame.f_code.co_filename
        if name.endswith((_WRAPPER, _CURSOR)):
            own = frame.f_locals.get("self")
            alias = getattr(own, "alias", None) or getattr(getattr(own, "db", None), "alias", None)
            return alias if isinstance(alias, str) and alias in connections.settings else None
    return None


class Stack(NamedTuple):
    """Text of the frames, the innermost last, and the alias of the Django connection that the innermost ones use."""

    lines: tuple[str, ...]
    database: str | None


@dataclass(slots=True)
class _Seen:
    """A stack that was the same at `looks` looks, the first of them at `since` (monotonic)."""

    stack: Stack
    since: float
    looks: int = 1


@dataclass(slots=True)
class _Place:
    """Threads or coroutines with the same stack."""

    seen: _Seen
    jobs: list[list[int]] = field(default_factory=list)
    threads: int = 0


#: the job, its fence and a number of the thread; without a job 0, 0
_Key = tuple[int, int, int]


class StackLooks:
    """A duty of a child's watchdog. It keeps each look, so that a later one knows since when a stack is the same."""

    def __init__(self, requests: StackRequest, unreachable: Callable[[], Mapping[str, str]] = dict) -> None:
        """`unreachable`: work of this process for which it cannot reach the database now, with codes of the errors."""
        self._requests, self._unreachable = requests, unreachable
        self._seen: dict[_Key, _Seen] = {}
        self._question, self._second_at = 0, 0.0

    def look(self) -> None:
        """Look if the monitor has asked; at the second look, answer. Costs nothing else."""
        question = self._requests.question
        if not question:
            return
        now = time.monotonic()
        if question != self._question:
            self._question, self._second_at = question, now + BETWEEN_SECONDS
            self._look(now)
        elif now >= self._second_at:
            self._look(now)
            self._requests.write(question, self._answer(now))

    def _look(self, now: float) -> None:
        before, self._seen = self._seen, {}
        for key, stack in _stacks().items():
            old = before.get(key)
            if old is not None and old.stack == stack:
                old.looks += 1
                self._seen[key] = old
            else:
                self._seen[key] = _Seen(stack, now)

    def _answer(self, now: float) -> bytes:
        places: dict[tuple[bool, Stack], _Place] = {}
        for (job_id, fence, _), seen in self._seen.items():
            place = places.setdefault((bool(job_id), seen.stack), _Place(seen))
            place.threads += 1
            # Threads with the same stack are one place, which tells only what is true of all of them.
            if seen.since > place.seen.since:
                place.seen = seen
            if job_id:
                place.jobs.append([job_id, fence])
        ordered = sorted(places.values(), key=lambda place: (not place.jobs, -place.threads))
        told: list[dict[str, object]] = []
        room = ANSWER_BYTES - FRAME_BYTES
        for place in ordered:
            facts = _facts(place, now)
            room -= len(json.dumps(facts)) + 2
            if room < 0:
                break
            told.append(facts)
        cut = len(told) < len(ordered) or len(running) > JOBS_MAX
        answer = {"answered": True, "places": told, "cut": cut}
        return json.dumps(answer | {"unreachable": dict(self._unreachable())}).encode()


def _facts(place: _Place, now: float) -> dict[str, object]:
    seen = place.seen
    return {
        "jobs": place.jobs,
        "threads": place.threads,
        "stack": list(seen.stack.lines),
        "database": seen.stack.database,
        "looks": seen.looks,
        "unchanged_seconds": round(now - seen.since, 3),
    }


def _stacks() -> dict[_Key, Stack]:
    """The stacks of all jobs that run, and of some of the other threads."""
    files, frames = Files(), sys._current_frames()
    found: dict[_Key, Stack] = {}
    own = {threading.get_ident()}
    for attempt in list(running.copy())[:JOBS_MAX]:
        key = (attempt.lease.job_id, attempt.lease.fence, attempt.thread)
        found[key] = _stack(_of_attempt(attempt, frames), files)
        if attempt.coroutine is None:
            own.add(attempt.thread)
    for ident in [ident for ident in frames if ident not in own][:OTHERS_MAX]:
        found[0, 0, ident] = _stack(of_thread(frames[ident]), files)
    return found


def _of_attempt(attempt: Attempt, frames: Mapping[int, FrameType]) -> list[FrameType]:
    thread = of_thread(frames.get(attempt.thread))
    if attempt.coroutine is None:
        return thread
    waits = of_coroutine(attempt.coroutine)
    # A coroutine that runs at this moment is on the stack of the event loop.
    return thread if any(frame in thread for frame in waits[:1]) else waits


def _stack(frames: list[FrameType], files: Files) -> Stack:
    inner = frames[-FRAMES_MAX:]
    return Stack(tuple(map(files.line, inner)), database_of(inner))
