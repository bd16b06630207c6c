"""Where the threads of a child are: it looks twice when the monitor asks, and answers through shared memory.

A thread without a connection does this, so that it works while all others wait for a database. It cannot look while a
job holds the interpreter in C.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple

from jobqueue.worker.run.attempt import Attempt, running
from jobqueue.worker.run.frames import FRAMES_MAX, Files, database_of, of_coroutine, of_thread
from jobqueue.worker.shared.stack_requests import ANSWER_BYTES, StackRequests

#: between the two looks
BETWEEN_SECONDS = 0.5
#: room for what an answer has beside the places
FRAME_BYTES = 1024
#: threads without a job, and coroutines and job threads, that are looked at
OTHERS_MAX, JOBS_MAX = 30, 300


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

    def __init__(self, requests: StackRequests, unreachable: Callable[[], Mapping[str, str]] = dict) -> None:
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
