"""Threads with a connection of their own, that stop where a test wants them to."""

import threading
from contextlib import contextmanager

from django.db import connections, transaction

from tests.blocking import is_held_up, stays_away
from tests.faults.moments import cut_at
from tests.patience import patient, wait_until


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
        wait_until(self.done.is_set, what="the end of the actor")
        self._thread.join()
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
        """Whether the actor waits for a lock of the database; see is_held_up()."""
        return is_held_up(self.done.is_set)

    def stays_away(self):
        """Whether the actor is still under way after a short while: for waits that the database does not know of."""
        return stays_away(self.done.is_set)


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
                assert leave.wait(4 * patient()), "the block does not end"
                if not commit:
                    raise RolledBack
        except RolledBack:
            pass
        finally:
            reached.set()

    actor = Actor(act)
    wait_until(reached.is_set, what="the transaction of the other thread")
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
        barrier.wait(patient())
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
            assert self._go.wait(4 * patient()), "nobody lets it go on"

        def run():
            try:
                with cut_at(number, stop):
                    return work()
            finally:
                self._there.set()

        super().__init__(run)
        wait_until(self._there.is_set, what="that moment, or the end")

    def go_on(self):
        """Let it finish its work."""
        self._go.set()
