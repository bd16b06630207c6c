"""Why a job that waits is not running, as a list for its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from jobqueue.admin.page.formatting import plain
from jobqueue.conf import load
from jobqueue.explain import Explanation
from jobqueue.explain.jobs import explain_row
from jobqueue.models import Job

if TYPE_CHECKING:
    from jobqueue.admin.jobs.states import ShownJob

TEXT_CHARS = 1000


class Reason(NamedTuple):
    """A sentence, and what one can do about it."""

    text: str
    step: str


def reasons_of(job: ShownJob) -> list[Explanation]:
    """What explain_job() finds of a job that is READY; [] of others."""
    return explain_row(job, load().database) if job.status == Job.Status.READY else []


def listed(found: Sequence[Explanation]) -> list[Reason]:
    """The reasons; none if the job only waits for its time or for a free worker, which the page says anyway."""
    if all(map(_is_usual, found)):
        return []
    return [Reason(plain(one.text, TEXT_CHARS), plain(one.next_step, TEXT_CHARS)) for one in found]


def _is_usual(one: Explanation) -> bool:
    return one.code == "not_due" or (one.code == "workers_busy" and not one.evidence.get("full"))
