"""The holders of a lock object that threads and tasks share: one Entry per acquire."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import MutableMapping
from typing import Any, TypeAlias

Owner: TypeAlias = "asyncio.Task[Any] | threading.Thread"


def present_owner() -> Owner:
    """The running task; outside of tasks the current thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.current_thread() if task is None else task


class Entry:
    """The state of one holder, from its acquire to its release."""

    def __init__(self) -> None:
        owner = present_owner()
        self._owner = weakref.ref(owner)
        self._pid = os.getpid()
        self.owner_name = str(owner.get_name() if isinstance(owner, asyncio.Task) else owner.name)
        self.held = False
        self.held_since = 0.0
        # Used by locks with a time to live.
        self.token = b""
        self.fence: int | None = None
        self.ends_at = 0.0
        # Used by locks of a connection: a weak reference to the driver's connection, and the thread that has it.
        self.session: Any = None
        self.thread: threading.Thread | None = None
        self.asking = False

    @property
    def is_inherited(self) -> bool:
        """Whether the parent of this forked process made it, which holds the lock."""
        return self._pid != os.getpid()

    @property
    def is_abandoned(self) -> bool:
        """Whether its owner has ended, such as a task of asyncio.wait_for() that acquired the lock."""
        owner = self._owner()
        if isinstance(owner, threading.Thread):
            return not owner.is_alive()
        return owner is None or owner.done()

    def has_owner_of(self, other: Entry) -> bool:
        """Whether the same thread or task made both entries."""
        owner = self._owner()
        return owner is not None and other.is_of(owner)

    def is_of(self, owner: Owner) -> bool:
        """Whether `owner` made it in this process."""
        return self._owner() is owner and not self.is_inherited


class Entries:
    """The entries of one lock object: those that hold the lock, and the newest one of each living thread and task."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may acquire the lock object while this thread does.
        self._guard = threading.RLock()
        self._newest: MutableMapping[Owner, Entry] = weakref.WeakKeyDictionary()
        self._held: list[Entry] = []
        self._last: Entry | None = None

    def own(self) -> Entry | None:
        """The entry with which the calling thread or task holds the lock."""
        owner = present_owner()
        with self._guard:
            return next((entry for entry in self._held if entry.is_of(owner)), None)

    def begin(self, entry: Entry) -> None:
        """Record that `entry` holds the lock."""
        with self._guard:
            entry.held = True
            self._held.append(entry)
            self._newest[present_owner()] = self._last = entry

    def end(self, entry: Entry) -> None:
        """Record that `entry` no longer holds the lock."""
        with self._guard:
            entry.held = False
            self._held = [other for other in self._held if other is not entry]

    def find(self) -> Entry | None:
        """The entry that a call of this thread or task is about: its own; for a helper thread that of the only holder.

        None where there is none, or more than one holder.
        """
        with self._guard:
            newest = self._newest.get(present_owner())
            if newest is not None:
                lost = [entry for entry in self._held if entry.is_abandoned]
                return lost[0] if not newest.held and len(lost) == 1 else newest
            if not self._held:
                return self._last
            return self._held[0] if len(self._held) == 1 else None

    def any_held(self) -> bool:
        """Whether a thread or task holds the lock through this object."""
        return bool(self._held)
