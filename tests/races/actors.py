"""Threads with a connection of their own, that stop where a test wants them to."""

import threading
from contextlib import contextmanager

from django.db import connections, transaction

from tests.faults.moments import cut_at
from tests.patience import patient

PATIENCE_SECONDS = 30
#: how long somebody who must be blocked is watched
BLOCKED_SECONDS = 0.25


class RolledBack(Exception):
    """Undoes the transaction of an actor; not an error of the test."""


class Actor:
    """Runs `work` in a thread; its value or exception is kept for result()."""

    def __init__(self, work, *args, **kwargs):
        self._work, self._args, self._kwargs = work, args, kwargs
        self._value = self._error = None
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._value = self._work(*self._args, **self._kwargs)
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()
            self.done.set()

    def result(self):
        """What `work` returned; what it raised is raised here."""
        assert self.done.wait(patient(PATIENCE_SECONDS)), "the actor did not come to an end"
        self._thread.join(patient(PATIENCE_SECONDS))
        if self._error is not None:
            raise self._error
        return self._value

    def outcome(self):
        """What `work` returned, or the exception itself."""
        try:
            return self.result()
        except Exception as error:
            return error

    def is_blocked(self):
        """Whether the actor is still under way after a short while."""
        return not self.done.wait(BLOCKED_SECONDS)


@contextmanager
def holding(work, commit=True, session=None, begin=transaction.atomic):
    """`work` is done in an open transaction of another thread while the block runs; then commit or rollback.

    Gives the value of `work`. `session` is called first, `begin` opens
    the transaction. The transaction has ended when the block has.
    """
    reached, leave = threading.Event(), threading.Event()
    found = []

    def act():
        try:
            if session is not None:
                session()
            with begin():
                found.append(work())
                reached.set()
                # A commit in the middle of the block would be another test.
                assert leave.wait(patient(4 * PATIENCE_SECONDS)), "the block does not end"
                if not commit:
                    raise RolledBack
        except RolledBack:
            pass
        finally:
            reached.set()

    actor = Actor(act)
    assert reached.wait(patient(PATIENCE_SECONDS))
    if not found:
        actor.result()
    try:
        yield found[0]
    finally:
        leave.set()
        actor.result()


def all_at_once(works):
    """Start all works behind one barrier; their outcomes, exceptions included, in order."""
    barrier = threading.Barrier(len(works))

    def run(work):
        barrier.wait(patient(PATIENCE_SECONDS))
        return work()

    actors = [Actor(run, work) for work in works]
    return [actor.outcome() for actor in actors]


class Stopped(Actor):
    """An actor that stops at this moment of its work (see tests.faults.moments) until go_on(), if it comes to that."""

    def __init__(self, number, work):
        self.stopped = False
        self._there, self._go = threading.Event(), threading.Event()

        def stop(connection, after):
            self.stopped = True
            self._there.set()
            assert self._go.wait(patient(4 * PATIENCE_SECONDS)), "nobody lets it go on"

        def run():
            try:
                with cut_at(number, stop):
                    return work()
            finally:
                self._there.set()

        super().__init__(run)
        assert self._there.wait(patient(PATIENCE_SECONDS)), "it has come neither to that moment nor to its end"

    def go_on(self):
        """Let it finish its work."""
        self._go.set()
