"""running and ended of the whole database: no job waits."""

from __future__ import annotations

from functools import cache

from django.utils.translation import gettext

from jobqueue.db import vendor
from jobqueue.db.expressions import Unestimated
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, id_list
from jobqueue.explain.findings import QUEUES_SHOWN, counted, queue_list
from jobqueue.models import Job
from jobqueue.payload import JSON

#: running jobs are counted up to this
COUNT_MAX = 1000


def nothing_waits(cut: bool, using: str) -> list[Explanation]:
    """That jobs run, or that none does. One statement. `cut`: not all queues were looked at for jobs that wait."""
    rows = _running(using).rows()
    ids, queues = sorted(job_id for job_id, _ in rows), sorted({queue for _, queue in rows})
    evidence: dict[str, JSON] = {
        "running": len(ids),
        "jobs": list(ids[:JOBS_SHOWN]),
        "queues": list(queues[:QUEUES_SHOWN]),
        "queues_total": len(queues),
        "queues_cut": cut,
    }
    if not ids:
        text = gettext("No job waits or runs: all of them have ended, or there was none.")
        return [Explanation("ended", text, evidence, gettext("Nothing is needed."))]
    facts = {"n": counted(len(ids), capped=len(ids) == COUNT_MAX), "jobs": id_list(ids), "queues": queue_list(queues)}
    text = gettext("No job waits. Jobs that run: %(n)s (%(jobs)s), in %(queues)s.")
    step = gettext("Wait until they end, or ask about each of them: jobs explain with its id.")
    return [Explanation("running", text % facts, evidence, step)]


@cache
def _running(using: str) -> Prepared:
    rows = Job.objects.using(using).filter(status=Unestimated(Job.Status.PROCESSING)).order_by("lock_until")
    return prepare_rows(vendor(using).force_index(rows, "ix_lease").values_list("pk", "queue")[:COUNT_MAX])
