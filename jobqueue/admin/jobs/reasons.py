"""Why a job that waits is not running, as a list for its page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext

from jobqueue.admin.page.addresses import address_of, link, page_address
from jobqueue.admin.page.formatting import plain
from jobqueue.conf import load
from jobqueue.explain import Explanation
from jobqueue.explain.jobs import explain_row
from jobqueue.models import Job
from jobqueue.payload import JSON

if TYPE_CHECKING:
    from jobqueue.admin.jobs.states import ShownJob

TEXT_CHARS = 1000


#: of a step, what is for the command line: the page has links instead
_COMMAND = re.compile(r" \(jobs [^()]*\)")
#: evidence with ids of other jobs
_JOBS = ("first_job", "probe_job", "jobs")
_OF_QUEUES = ("paused", "draining", "slot", "rate", "key", "row_lock")


class Reason(NamedTuple):
    """A sentence, what one can do about it, and links to what it is about."""

    text: str
    step: str
    links: list[str]


def reasons_of(job: ShownJob) -> list[Explanation]:
    """What explain_job() finds of a job that is READY; [] of others."""
    return explain_row(job, load().database) if job.status == Job.Status.READY else []


def listed(found: Sequence[Explanation]) -> list[Reason]:
    """The reasons; none if the job only waits for its time or for a free worker, which the page says anyway."""
    if all(map(_is_usual, found)):
        return []
    return [
        Reason(plain(one.text, TEXT_CHARS), plain(_COMMAND.sub("", one.next_step), TEXT_CHARS), _links(one))
        for one in found
    ]


def _links(one: Explanation) -> list[str]:
    """To the other jobs that it names, and to the page on which its next step is done."""
    ids = [job_id for name in _JOBS for job_id in _ids(one.evidence.get(name))]
    found = [(page_address("job", job_id), gettext("job %(id)d") % {"id": job_id}) for job_id in dict.fromkeys(ids)]
    queue, dependency = one.evidence.get("queue"), one.evidence.get("dependency")
    if one.code in _OF_QUEUES and isinstance(queue, str):
        task = one.evidence.get("task")
        asked = {"queue": queue, **({"task": task} if isinstance(task, str) else {})}
        found.append((address_of("flowrule_queue", **asked), gettext("queue %(queue)s") % {"queue": plain(queue)}))
    if isinstance(dependency, str):
        found.append((address_of("flowrule_breaker", dependency=dependency), plain(dependency)))
    return [link(address, text) for address, text in found if address]


def _ids(value: JSON) -> list[int]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)]


def _is_usual(one: Explanation) -> bool:
    return one.code == "not_due" or (one.code == "workers_busy" and not one.evidence.get("full"))
