"""The attempts of a job that ended without success, each with its error and what it logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models.functions import Right
from django.utils.translation import gettext

from jobqueue.admin.jobs.states import ShownJob
from jobqueue.admin.page.causes import CAUSES, REQUESTED
from jobqueue.admin.page.formatting import (
    NOTHING,
    error_note,
    label,
    masked_block,
    moment,
    plain,
    relative,
    short_class,
    short_worker,
    span,
)
from jobqueue.admin.page.tables import Fact, facts
from jobqueue.conf import load
from jobqueue.masking import mask_tail
from jobqueue.models import JobAttempt

ATTEMPTS_SHOWN = 50
#: how many characters of an error and of a log are shown, from their ends; of the newest error more
ATTEMPT_CHARS, NEWEST_CHARS = 4000, 20_000
NOTE_CHARS = 300


class Attempt(NamedTuple):
    """An attempt as the page shows it. `error` and `log` are blocks without secrets; "" if there is none."""

    number: int
    cause: str
    kind: str
    note: str
    when: list[str]
    facts: list[Fact]
    error: str
    log: str


def read_attempts(job_id: int) -> list[Any]:
    """The newest ATTEMPTS_SHOWN and one more, newest first, with the ends of their texts as `tail` and `log_tail`."""
    rows = JobAttempt.objects.using(load().database).filter(job_id=job_id).order_by("-id").defer("error", "log")
    ends = rows.annotate(tail=Right("error", ATTEMPT_CHARS), log_tail=Right("log", ATTEMPT_CHARS))
    return list(ends[: ATTEMPTS_SHOWN + 1])


def panels(job: ShownJob, rows: Sequence[Any]) -> list[Attempt]:
    """The attempts, newest first; the newest one with the whole error that the job has."""
    return [
        _panel(job, row, whole=place == 0 and ends_with_error_of(job, row))
        for place, row in enumerate(rows[:ATTEMPTS_SHOWN])
    ]


def ends_with_error_of(job: ShownJob, row: Any) -> bool:
    """Whether the last error of the job is that of this attempt."""
    return bool(job.last_error) and job.last_error[-ATTEMPT_CHARS:] == row.tail


def _panel(job: ShownJob, row: Any, *, whole: bool) -> Attempt:
    tail = mask_tail(row.tail or "", ATTEMPT_CHARS)
    text, chars = (job.last_error or "", NEWEST_CHARS) if whole else (row.tail or "", ATTEMPT_CHARS)
    ran = None if row.started_at is None else max(0.0, (row.ended_at - row.started_at).total_seconds())
    said = [
        relative(row.ended_at, job.now),
        "" if ran is None else gettext("ran %(time)s") % {"time": span(ran)},
        plain(short_worker(row.worker or "")),
    ]
    return Attempt(
        row.attempt,
        str((CAUSES | REQUESTED).get(row.cause, plain(row.cause))),
        "canceled" if row.cause in REQUESTED else "failed",
        plain(short_class(error_note(tail)), NOTE_CHARS) or NOTHING,
        [one for one in said if one],
        facts(
            (label(JobAttempt, "started_at"), moment(row.started_at, job.now)),
            (label(JobAttempt, "ended_at"), moment(row.ended_at, job.now)),
            (label(JobAttempt, "worker"), plain(row.worker or "")),
            (label(JobAttempt, "error_class"), plain(row.error_class)),
        ),
        end_of(text, chars),
        end_of(row.log_tail or "", ATTEMPT_CHARS),
    )


def end_of(text: str, chars: int) -> str:
    """The last `chars` characters as a block without secrets: the end of a traceback names the error."""
    return masked_block(mask_tail(text[-chars:], chars)) if text else ""
