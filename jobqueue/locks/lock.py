"""Lock: acquire, release, with and async with, for every lock that outlives a statement.

TimedLock: locks that end after a time to live and have a fence; a warning when a job may run for longer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self, TypeVar

from asgiref.sync import sync_to_async

from jobqueue.base.validation import check_lock_name, check_seconds
from jobqueue.conf import load
from jobqueue.conf.known_tasks import spec_at
from jobqueue.context.job_context import current_job
from jobqueue.exceptions import InvalidType, InvalidValue, LockAlreadyHeld, LockLost, LockNotAcquired, LockNotHeld
from jobqueue.locks.deadline import Deadline
from jobqueue.locks.entries import Entries, Entry
from jobqueue.lockstats import recorder
from jobqueue.models import LockFinding

logger = logging.getLogger("jobqueue.locks")
T = TypeVar("T")

_WARNED_MAX = 1000
#: (task or queue, time to live) that were logged
_warned: set[tuple[str, str]] = set()


class Lock:
    """A lock by name. Any number of threads and tasks may share the object; one of them holds the lock at a time.

    `with lock:` acquires and releases. If the lock was lost meanwhile, an error of the block gets a note, and a block
    without an error ends in LockLost, because another holder may have worked at the same time. While there is only one
    holder, its helper threads may renew and release the lock too.
    """

    kind = "lock"
    #: when the lock ends if the holder cannot release it
    ends = ""
    #: whether lock statistics count it
    _counted = True

    def __init__(self, name: str, timeout_seconds: float | None) -> None:
        self.name = check_lock_name(name)
        self.timeout_seconds = (
            None if timeout_seconds is None else check_seconds(timeout_seconds, "timeout_seconds", zero=True)
        )
        self._entries = Entries()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}{', held' if self._entries.any_held() else ''}>"

    def acquire(self) -> Self:
        """Wait up to timeout_seconds (None = for ever, 0 = one try) and hold the lock.

        Raises LockNotAcquired; LockAlreadyHeld if this thread or task is inside already.
        """
        entry = self._enter()
        self._prepare(entry)
        deadline = Deadline(self.timeout_seconds)
        try:
            while not self._attempt(entry, deadline.left_seconds()):
                time.sleep(self._pause_seconds(deadline))
        except (LockNotAcquired, LockAlreadyHeld):
            raise
        except BaseException:
            # Interrupted: the lock may have been granted nevertheless.
            self._forget(entry)
            raise
        self._hold(entry, deadline)
        return self

    def release(self) -> None:
        """Release the lock. Raises LockNotHeld for a caller without it, LockLost if another holder may have it."""
        self._release(self._require_held("release"))

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(self._entries.find(), error)

    async def aacquire(self) -> Self:
        """acquire() for coroutines: each try runs in a thread, the pauses on the event loop."""
        entry = self._enter()
        await sync_to_async(self._prepare)(entry)
        deadline = Deadline(self.timeout_seconds)
        try:
            # A try must not wait: all coroutines share the thread, also the one that will release the lock.
            while not await sync_to_async(self._attempt)(entry, 0.0):
                await asyncio.sleep(self._pause_seconds(deadline))
        except (LockNotAcquired, LockAlreadyHeld):
            raise
        except BaseException:
            await run_shielded(self._forget, entry)
            raise
        self._hold(entry, deadline)
        return self

    async def arelease(self) -> None:
        """release() for coroutines. A cancelation of the coroutine does not interrupt it."""
        await run_shielded(self._release, self._require_held("release"))

    async def __aenter__(self) -> Self:
        return await self.aacquire()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await run_shielded(self._leave, self._entries.find(), error)

    def _enter(self) -> Entry:
        """A new entry of the calling thread or task. Raises LockAlreadyHeld if it holds the lock."""
        if self._entries.own() is not None:
            raise LockAlreadyHeld(
                f"{self.kind} {self.name!r}: this thread or task holds it already, and locks are not re-entrant. "
                "Nothing changed; pass the object on instead of acquiring it again."
            )
        return Entry()

    def _prepare(self, entry: Entry) -> None:
        """Check the caller before the server is asked, and set the entry up."""

    def _hold(self, entry: Entry, deadline: Deadline) -> None:
        # In this order, so that no instant is counted as both waited and held.
        waited_seconds = deadline.waited_seconds()
        entry.held_since = time.monotonic()
        self._entries.begin(entry)
        if self._counted:
            recorder.acquired(self.kind, self.name, waited_seconds, contended=deadline.failures > 0)

    def _release(self, entry: Entry) -> None:
        self._refuse(entry, "release")
        self._entries.end(entry)
        if not self._give_back(entry):
            raise self._lose(entry, "its release")
        if self._counted:
            recorder.released(self.kind, self.name, time.monotonic() - entry.held_since)

    def _leave(self, entry: Entry | None, error: BaseException | None) -> None:
        if entry is None or not entry.held:
            # The block has released it, or LockLost was raised.
            return
        if error is None:
            self._release(entry)
            return
        try:
            self._release(entry)
        except Exception as second:
            error.add_note(f"Also: {second}")
            logger.warning("%s %r could not be released: %s", self.kind, self.name, second)

    def _pause_seconds(self, deadline: Deadline) -> float:
        """The time to sleep before the next try. Raises LockNotAcquired at the deadline."""
        pause = deadline.pause_seconds()
        if pause is None:
            if self._counted:
                recorder.failed(self.kind, self.name, deadline.waited_seconds())
            raise self._not_acquired()
        return pause

    def _lose(self, entry: Entry, before: str) -> LockLost:
        """End an entry whose lock was lost; the error to raise."""
        self._entries.end(entry)
        if self._counted:
            recorder.reentered(self.kind, self.name)
        return self._lost(before)

    def _attempt(self, entry: Entry, wait_seconds: float | None) -> bool:
        """Try once; where the server can wait, for up to `wait_seconds` (None: without limit)."""
        raise NotImplementedError

    def _give_back(self, entry: Entry) -> bool:
        """Release the lock at the server; False if this entry no longer held it, and then nothing changed."""
        raise NotImplementedError

    def _refuse(self, entry: Entry, verb: str) -> None:
        """Raise if this caller must not renew or release the lock."""
        if entry.is_inherited:
            raise LockNotHeld(
                f"{self.kind} {self.name!r}: cannot {verb}, the process that forked this one holds it. Nothing "
                "changed; acquire the lock in the process that works under it."
            )

    def _forget(self, entry: Entry) -> None:
        """Release the lock if a try that was interrupted has acquired it."""
        try:
            self._give_back(entry)
        except Exception as error:
            logger.warning("%s %r may still be held: %s. %s", self.kind, self.name, error, self.ends)

    def _require_held(self, verb: str) -> Entry:
        entry = self._entries.find()
        if entry is None or not entry.held:
            why = "it was never acquired" if entry is None else "it was released already"
            if entry is None and self._entries.any_held():
                why = "several threads or tasks have acquired it, and this is none of them"
            raise LockNotHeld(f"{self.kind} {self.name!r}: cannot {verb}, {why}. Nothing changed.")
        return entry

    def _not_acquired(self) -> LockNotAcquired:
        waited = f"within {self.timeout_seconds:g} s" if self.timeout_seconds else "at once"
        return LockNotAcquired(
            f"{self.kind} {self.name!r} was not free {waited}: somebody else holds it. Nothing was written; "
            "try again later, or wait longer with timeout_seconds."
        )

    def _lost(self, before: str) -> LockLost:
        return LockLost(
            f"{self.kind} {self.name!r} ended before {before}: somebody else may have held it meanwhile. "
            "Nothing was changed by this call. Check what the block has written; a fence refuses late writes."
        )


@contextmanager
def lock_all(*locks: Lock) -> Iterator[tuple[Lock, ...]]:
    """Hold all `locks` for a block, acquired from the lowest kind and name to the highest, released in reverse.

    All callers of lock_all() acquire in the same order, so they cannot deadlock. Yields the locks in the order of the
    arguments. Raises LockNotAcquired, and then holds none; InvalidValue for two locks of one name, which would wait for
    each other.
    """
    names = set()
    for lock in locks:
        if not isinstance(lock, Lock):
            raise InvalidType(f"lock_all() takes lock objects such as lease_lock(...), got {type(lock).__name__}.")
        name = (lock.kind, lock.name, getattr(lock, "using", None))
        if name in names:
            raise InvalidValue(f"lock_all() got {lock.kind} {lock.name!r} twice. Nothing was locked; leave one out.")
        names.add(name)
    with ExitStack() as stack:
        for lock in sorted(locks, key=lambda lock: (lock.kind, lock.name.encode())):
            stack.enter_context(lock)
        yield locks


async def run_shielded(step: Callable[..., T], *args: object) -> T:
    """Run `step` in the thread of sync_to_async and return its result; a cancelation is raised after it has run.

    A canceled sync_to_async would drop a step that still waits for its thread.
    """
    begun = False

    def run() -> T:
        nonlocal begun
        begun = True
        return step(*args)

    canceled: asyncio.CancelledError | None = None
    doing = asyncio.ensure_future(sync_to_async(run)())
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as error:
            canceled = error
        if doing.cancelled() and not begun:
            # The end of an event loop cancels all of its tasks.
            doing = asyncio.ensure_future(sync_to_async(run)())
    if canceled is None:
        return doing.result()
    if not doing.cancelled() and doing.exception() is not None:
        canceled.add_note(f"Also: {doing.exception()}")
    raise canceled


class TimedLock(Lock):
    """A lock that ends `ttl_seconds` after it was acquired or renewed."""

    ends = "It ends by itself after its time to live."

    def __init__(self, name: str, ttl_seconds: float, timeout_seconds: float | None) -> None:
        super().__init__(name, timeout_seconds)
        self.ttl_seconds = check_seconds(ttl_seconds, "ttl_seconds")

    @property
    def fence(self) -> int:
        """The number of this holder, larger than that of every earlier holder. It stays readable after the release."""
        entry = self._entries.find()
        if entry is None or entry.fence is None:
            raise LockNotHeld(f"{self.kind} {self.name!r} has no fence before this thread or task has acquired it.")
        return entry.fence

    @property
    def remaining_seconds(self) -> float:
        """The time for which the lock is certainly held, by this process's clock; 0 when it may have ended."""
        entry = self._entries.find()
        return max(0.0, entry.ends_at - time.monotonic()) if entry is not None and entry.held else 0.0

    def _prepare(self, entry: Entry) -> None:
        warn_of_short_ttl(self.kind, self.name, self.ttl_seconds)

    def renew(self, ttl_seconds: float | None = None) -> None:
        """Let the lock end `ttl_seconds` (default: as acquired) from now. Raises LockLost if it has ended already.

        No background thread does this: a body that hangs must lose its lock.
        """
        self._renew(self._require_held("renew"), ttl_seconds)

    async def arenew(self, ttl_seconds: float | None = None) -> None:
        """renew() for coroutines."""
        await sync_to_async(self._renew)(self._require_held("renew"), ttl_seconds)

    def _renew(self, entry: Entry, ttl_seconds: float | None) -> None:
        self._refuse(entry, "renew")
        seconds = self.ttl_seconds if ttl_seconds is None else check_seconds(ttl_seconds, "ttl_seconds")
        asked = time.monotonic()
        if not self._prolong(entry, seconds):
            raise self._lose(entry, "its renewal")
        entry.ends_at = asked + seconds

    def _prolong(self, entry: Entry, seconds: float) -> bool:
        """Let the lock end `seconds` from now at the server; False if this entry no longer held it."""
        raise NotImplementedError


def warn_of_short_ttl(kind: str, name: str, ttl_seconds: float) -> None:
    """Warn, once per task and time to live, that the running job may run for longer than this lock lasts.

    Does nothing outside a job, and where neither the task nor JOBQUEUE limits the time of the job.
    """
    job = current_job()
    if job is None:
        return
    spec, settings = spec_at(job.lease.task), load()
    limits = [
        spec.timeout_seconds or settings.timeout_seconds,
        spec.hard_timeout_seconds or settings.hard_timeout_seconds,
    ]
    most = min((seconds for seconds in limits if seconds is not None), default=None)
    subject = (job.lease.task or job.queue, f"{ttl_seconds:g}")
    if most is None or ttl_seconds >= most or subject in _warned or len(_warned) >= _WARNED_MAX:
        return
    _warned.add(subject)
    facts = {"lock": kind, "key": name, "task": subject[0], "ttl_seconds": ttl_seconds, "limit_seconds": most}
    # One row for all workers and keys: the finding is about the task's code.
    recorder.found(
        recorder.Finding(LockFinding.Kind.TTL, f"{subject[0]} {kind} {subject[1]} {most:g}", facts, ttl_seconds)
    )
    logger.warning(
        "%s %r ends %g s after it is acquired, but its job %s may run for %g s: others may get the lock meanwhile. "
        "Raise ttl_seconds, renew() between steps, or lower timeout_seconds. Logged once",
        kind,
        name,
        ttl_seconds,
        subject[0],
        most,
    )
