"""The ends of a run that the job itself requests by raising an exception: REQUESTED_ENDS has one row for each.

Such a run uses no attempt. What of it is kept in shared memory, written, counted, logged and shown follows from the
row. Retry is none of them: its run is a failed attempt. Needs no models: the scoreboard and the log formatters, which
are imported before apps are ready, read the table too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.dispatch import Signal
from django.utils.translation import gettext_lazy as _

from jobqueue.base.validation import SECONDS_MAX
from jobqueue.exceptions import Discard, JobQueueError, Snooze
from jobqueue.failures import dotted_path, storable
from jobqueue.failures.text import message
from jobqueue.signals import RunOutcome, job_snoozed

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


class RequestedEnd(NamedTuple):
    """One end that a job can request."""

    error: type[JobQueueError]  # what the job raises
    outcome: RunOutcome  # its value is also the cause in JobAttempt, the wait_reason, and the name of the counter
    again: bool  # True: READY after `after_seconds` of the error; False: CANCELED, and its message is last_error
    label: StrOrPromise  # in the admin
    signal: Signal | None = None  # of those that run again: sent after the commit, with delay_seconds

    def count_in(self, counts: object) -> None:
        """Add one to the number of `counts` that is named after the outcome."""
        setattr(counts, self.outcome.value, getattr(counts, self.outcome.value) + 1)


#: a subclass precedes its base class
REQUESTED_ENDS = (
    RequestedEnd(Snooze, RunOutcome.SNOOZED, again=True, label=_("snoozed"), signal=job_snoozed),
    RequestedEnd(Discard, RunOutcome.DISCARDED, again=False, label=_("discarded")),
)
_ERRORS = tuple(end.error for end in REQUESTED_ENDS)
BY_OUTCOME = {end.outcome: end for end in REQUESTED_ENDS}
#: the causes in JobAttempt of runs that used no attempt; those of others are FailureCauses. The last one: its process
#: was killed because it did not stop when it was canceled
UNCHARGED = (*(outcome.value for outcome in BY_OUTCOME), RunOutcome.CANCELED.value)


class Requested(NamedTuple):
    """What one run has requested, in plain values: the exception may be of a class of the project, and is read once."""

    end: RequestedEnd
    text: str
    error_class: str
    delay_seconds: float | None = None  # None if the job does not run again


def requested_by(error: BaseException | None) -> Requested | None:
    """What a job requests by raising `error`; None for other errors, and for one that does not say when."""
    # isinstance() would ask for __class__, which may be a property that raises.
    if error is None or not issubclass(type(error), _ERRORS):
        return None
    end = next(end for end in REQUESTED_ENDS if issubclass(type(error), end.error))
    found = Requested(end, storable(message(error)) or end.outcome.value, dotted_path(type(error))[:255])
    if not end.again:
        return found
    try:
        seconds = float(error.after_seconds)  # type: ignore[attr-defined]
    except BaseException:  # a class of the project may not have called the constructor of its base, or may raise here
        return None
    return found._replace(delay_seconds=seconds) if 0 <= seconds <= SECONDS_MAX else None
