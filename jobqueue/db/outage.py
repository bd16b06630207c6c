"""Threads that keep trying while their database is unreachable, and log the beginning and the end of the outage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.db import Error, connections

from jobqueue.backoff import Backoff
from jobqueue.db import fault_vendor, is_lost_connection, is_refusal
from jobqueue.db.dialect import ErrorKind
from jobqueue.exceptions import DatabaseBusy

#: the longest wait between two tries; that of the monitor, which renews the leases of a whole worker by one session
MOST_SECONDS, URGENT_SECONDS = 5.0, 0.5
UNREACHABLE, REFUSED = "the database is unreachable", "the database refused it"


class Outage:
    """The failures in a row of one piece of work of a thread, such as the claims of a child.

    The first is logged: "WHO cannot WORK: the database is unreachable (ERROR); trying again in 0.2 s"; one for another
    reason too, and the others at DEBUG. The end: "WHO can WORK: the database answers again after 3.1 s".
    """

    def __init__(
        self,
        who: str,
        work: str,
        using: str,
        *,
        most_seconds: float = MOST_SECONDS,
        rhythm: str = "",
        meanwhile: str = "",
        since: float = 0.0,
        logger: logging.Logger | None = None,
        on_failure: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`rhythm`: when it is tried again whatever met() returns. `meanwhile`: what that means for people.

        `since`: when the outage began, if another process has noticed that (monotonic).
        """
        self._who, self._work, self._using, self._rhythm = who, work, using, rhythm
        self._meanwhile = f"; {meanwhile}" if meanwhile else ""
        self._pauses = Backoff(base_seconds=0.15, cap_seconds=most_seconds, jitter=0.33)
        self._logger = logger or logging.getLogger("jobqueue.worker")
        self._on_failure, self._on_end = on_failure, on_end
        self._logged: str | None = None
        self._forget()
        if since:
            self.failures, self.since, self._logged = 1, since, UNREACHABLE

    def met(self, error: BaseException, *, quiet: bool = False) -> float:
        """Record a failure, and close the connection of this thread; returns the seconds until the next try.

        `quiet`: log it at DEBUG only, because another thread logs it.
        """
        self.failures += 1
        now, pause = time.monotonic(), self._pauses.delay_seconds(self.failures)
        self.since, self.next_try = self.since or now, now + pause
        cause = error.__cause__ if isinstance(error, DatabaseBusy) and error.__cause__ is not None else error
        gone = is_lost_connection(cause, self._using)
        reader = fault_vendor(self._using)
        self.code = reader.error_code(cause) if gone else ""
        self.unanswered = gone and reader.error_kind(cause) is ErrorKind.LOST_CONNECTION
        why = UNREACHABLE if gone else REFUSED if isinstance(error, (Error, DatabaseBusy)) else ""
        level = logging.ERROR if is_refusal(error, self._using) else logging.WARNING
        if quiet or why == self._logged:
            level = logging.DEBUG
        else:
            self._logged = why
        what = f"{why} ({error})" if why else f"{type(error).__name__}: {error}"
        again = self._rhythm or f"in {pause:.1f} s"
        self._logger.log(
            level, "%s cannot %s: %s; trying again %s%s", self._who, self._work, what, again, self._meanwhile
        )
        self._on_failure()
        connections[self._using].close()
        return pause

    def over(self) -> None:
        """Record that the work has succeeded."""
        if not self.failures:
            return
        level = logging.DEBUG if self._logged is None else logging.WARNING
        how = " again" if self._logged == "" else ": the database answers again"
        seconds = time.monotonic() - self.since
        self._logger.log(level, f"%s can %s{how} after %.1f s", self._who, self._work, seconds)
        self._forget()
        self._on_end()

    def _forget(self) -> None:
        self.failures, self.since, self.next_try = 0, 0.0, 0.0
        #: the code of the last error, as long as it means that there is no connection
        self.code = ""
        #: whether the database did not answer at the last failure; if it refused, a new process would not help
        self.unanswered = False
        self._logged = None
