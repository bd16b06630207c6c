"""What the options of a job keep of its life: when it fell due for its first run, and which attempt goes on later.

Only those of jobs that are limited in their retries: a task with retry_until_seconds, and from the first retry by hand
on one with a dependency. A life begins with the enqueue and with each retry() by hand or redrive. Crashes and parking
move run_at, and this stays.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from jobqueue.base.payload import JSON, encode
from jobqueue.base.validation import check_instant
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import JobQueueError

#: in the options: [the instant, or null for created_at; the attempts of earlier lives]
FIRST_DUE = "first_due"
#: in the options: the attempt that has raised Snooze, and that later runs continue
_SNOOZED = "snoozed"
_BYTES_MAX = 16_384


class Run(Protocol):
    """What is asked of a lease: models cannot be imported here, because tasks are defined before apps are ready."""

    @property
    def options(self) -> Any: ...
    @property
    def attempt(self) -> int: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def run_at(self) -> datetime: ...


class FirstDue(NamedTuple):
    """When the job of a lease fell due for the first run of this life."""

    instant: datetime
    attempts: int  # of earlier lives
    kept: bool  # False: its options do not tell, and this run is taken for the first one


def first_due(lease: Run) -> FirstDue:
    """By the options of the row, in which plain SQL may have written anything."""
    try:
        instant, attempts = lease.options[FIRST_DUE]
        if 0 <= int(attempts) < lease.attempt:
            found = lease.created_at if instant is None else check_instant(datetime.fromisoformat(instant))
            return FirstDue(max(found, lease.created_at), int(attempts), True)
    except (TypeError, KeyError, ValueError, JobQueueError):
        pass
    return FirstDue(lease.run_at, lease.attempt - 1, False)


def is_first_run(lease: Run) -> bool:
    """Whether no earlier run of this life has failed, as far as the row tells."""
    if lease.attempt == 1 or not isinstance(lease.options, dict):
        return lease.attempt == 1
    due = first_due(lease)
    return due.kept and lease.attempt == due.attempts + 1


def continues(lease: Run) -> bool:
    """Whether an earlier run of this attempt has raised Snooze."""
    return isinstance(lease.options, dict) and lease.options.get(_SNOOZED) == lease.attempt


def keeps_first_due(options: JSON) -> bool:
    """Whether these options tell when the life began: then they must tell it of a life that begins anew, too."""
    return isinstance(options, dict) and FIRST_DUE in options


def with_first_due(options: dict[str, JSON], due: datetime | None, attempts: int = 0) -> dict[str, JSON]:
    """`options` of a life that begins at `due` (None: with the row), after so many attempts of earlier lives."""
    return options | {FIRST_DUE: [None if due is None else due.isoformat(), attempts]}


def begins_again(job: Any, now: Callable[[], datetime]) -> dict[str, object]:
    """The column to write when a Job is retried by hand: its life begins `now`. {} if nothing limits its retries."""
    if job.dependency is None and not keeps_first_due(job.options):
        return {}
    options = _encoded(with_first_due(_known(job.options), now(), job.attempts))
    return {} if options is None else {"options": options}


def after_run(lease: Run, *, failed: bool) -> Encoded | None:
    """The options to write after a run that failed, or that the job continues later; None: nothing is to be changed."""
    due, known = first_due(lease), _known(lease.options)
    # What continues in the first run of a life is no retry anyway.
    changed = known if failed or lease.attempt == due.attempts + 1 else known | {_SNOOZED: lease.attempt}
    return None if due.kept and changed == known else _encoded(with_first_due(changed, due.instant, due.attempts))


def _known(options: JSON) -> dict[str, JSON]:
    return options if isinstance(options, dict) else {}


def _encoded(options: dict[str, JSON]) -> Encoded | None:
    """None: they are too long, and nothing is kept."""
    try:
        return Encoded(encode(options, max_bytes=_BYTES_MAX, what="the options of the job"))
    except JobQueueError:
        return None
