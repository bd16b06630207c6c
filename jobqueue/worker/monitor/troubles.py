"""Writes into the rows of workers what is wrong: what their host is short of, a stall, commits that take long."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence

from jobqueue.maintenance import worker_rows
from jobqueue.payload import JSON
from jobqueue.worker.shared.host import Resource, short_of

logger = logging.getLogger("jobqueue.worker")

#: a trouble that lasts is written again after this time, with the figures of that moment
AGAIN_SECONDS = 60.0
#: commits are slow if each of the last IN_A_ROW heartbeats took longer than this
COMMIT_SECONDS, IN_A_ROW = 0.5, 3


class Troubles:
    """One worker's. report() is called by one thread, with each heartbeat."""

    def __init__(self, using: str) -> None:
        self._using = using
        #: by name of the child: what its row says of a stall; set by another thread, as a whole
        self.stalled: Mapping[str, JSON] = {}
        #: by name of the child: what its row says, and when it was written
        self._written: dict[str, tuple[dict[str, JSON], float]] = {}
        self._commits: deque[float] = deque(maxlen=IN_A_ROW)
        self._commits_were_slow = False

    def note_commit(self, seconds: float) -> None:
        """Note how long the write of a heartbeat took with its commit."""
        self._commits.append(seconds)

    def report(self, children: Sequence[tuple[str, int]]) -> None:
        """Write what has changed. `children`: name and pid of each living one.

        Nothing is written for one without troubles.
        """
        stalled, slow = self.stalled, self._slow_commits()
        kept = {name: self._written[name] for name, _ in children if name in self._written}
        self._written = kept
        for name, pid in children:
            before, at = kept.get(name, ({}, 0.0))
            short = short_of(pid, before)
            found: dict[str, JSON] = {key: _figures(one) for key, one in short.items()}
            found |= slow
            if name in stalled:
                found["stalled"] = stalled[name]
            if found.keys() == before.keys() and (not found or time.monotonic() < at + AGAIN_SECONDS):
                continue
            worker_rows.note_troubles(name, found or None, using=self._using)
            self._written[name] = found, time.monotonic()
            for key in short.keys() - before.keys():
                logger.warning("%s is short of %s", name, _words(short[key]))

    def _slow_commits(self) -> dict[str, JSON]:
        """The fastest of the last commits, if that was slow: a single one may have waited for another session."""
        fastest = min(self._commits, default=0.0)
        slow = len(self._commits) == IN_A_ROW and fastest > COMMIT_SECONDS
        if slow and not self._commits_were_slow:
            logger.warning("the database takes %.0f ms to write and commit one heartbeat", 1000 * fastest)
        self._commits_were_slow = slow
        return {worker_rows.SLOW_COMMIT: {"ms": round(1000 * fastest)}} if slow else {}


def _figures(one: Resource) -> JSON:
    return {"free": one.free, "limit": one.limit, "of": one.of}


def _words(one: Resource) -> str:
    if one.name == "descriptors":
        return f"file descriptors: {one.limit - one.free} of {one.limit} of the {one.of} are open"
    what = "memory" if one.name == "memory" else "disk space"
    return f"{what}: {one.free // 2**20} of {one.limit // 2**20} MB of {one.of} are free"
