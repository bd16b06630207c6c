"""monitor_dead: leases have run out, or workers are silent, and nobody has acted on it."""

from __future__ import annotations

from functools import lru_cache

from django.utils.translation import gettext

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.expressions import Unestimated
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, Finding, counted, id_list, queue_list, span
from jobqueue.explain.rows import ReadJob
from jobqueue.maintenance.worker_rows import silent
from jobqueue.models import Job
from jobqueue.payload import JSON
from jobqueue.schedules.listing import late_names

#: leases that have run out are counted up to this, silent workers are named, schedules that are late counted
LEASES_MAX, WORKERS_SHOWN, LATE_MAX = 1000, 10, 1000


def monitor_dead(using: str) -> list[Finding]:
    """monitor_dead, if leases ran out, or heartbeats ended, too long ago. Two statements.

    Every worker's monitor ends such leases and marks such workers about once a second.
    """
    seconds = load().worker_silent_seconds
    rows = _lapsed(using, seconds).rows()
    # A worker counts as silent after that time. Monitors get the same time again to act on it.
    names = list(silent(2 * seconds, using=using).values_list("name", flat=True)[:WORKERS_SHOWN])
    if not rows and not names:
        return []
    ids, capped = [row[0] for row in rows], len(rows) >= LEASES_MAX
    queues = {queue for _, queue, _, _ in rows}
    evidence: dict[str, JSON] = {"leases": len(ids), "jobs": list(ids[:JOBS_SHOWN]), "silent_workers": list(names)}
    evidence["seconds"] = max(((now - until).total_seconds() for _, _, until, now in rows), default=None)
    if rows:
        text = gettext(
            "Nobody ends leases that have run out: %(n)s have been over for up to %(time)s (jobs %(jobs)s). The "
            "monitors of workers, or reap_leases, should end them within seconds."
        )
    else:
        text = gettext(
            "Workers have been silent for more than %(limit)s, and nobody has marked them as stopped: %(workers)s. "
            "Monitors of other workers, or reap_leases, should do that within seconds."
        )
    facts = {"n": counted(len(ids), capped=capped), "jobs": id_list(ids), "workers": ", ".join(names)}
    facts |= {"time": span(float(evidence["seconds"] or 0)), "limit": span(2 * seconds)}
    one = Explanation("monitor_dead", text % facts, evidence, _step())
    return [Finding(one, queues=queues, jobs=len(ids), capped=capped)]


def late_schedules(using: str) -> list[Finding]:
    """monitor_dead, if schedules are due and no worker fires them. One statement."""
    names, seconds = late_names(using, LATE_MAX)
    if not names:
        return []
    text = gettext(
        "Schedules are due and no worker fires them: %(n)s (%(names)s); the first one has been due for %(time)s. Their "
        "jobs are not added."
    )
    facts = {"n": counted(len(names), capped=len(names) >= LATE_MAX), "names": queue_list(names), "time": span(seconds)}
    evidence: dict[str, JSON] = {"kind": "schedules", "schedules": list(names[:WORKERS_SHOWN])}
    evidence |= {"late": len(names), "seconds": seconds}
    step = gettext("Start a worker without --no-scheduler. If one runs, look for 'schedule' in its log.")
    return [Finding(Explanation("monitor_dead", text % facts, evidence, step))]


def nobody_reaps(job: ReadJob) -> list[Explanation]:
    """monitor_dead, if the lease of a PROCESSING job ran out WORKER_SILENT_SECONDS ago or earlier."""
    seconds = 0.0 if job.lock_until is None else (job.now - job.lock_until).total_seconds()
    if seconds < load().worker_silent_seconds:
        return []
    text = gettext("The lease of job %(id)d ran out %(time)s ago, and nobody has ended it.")
    evidence: dict[str, JSON] = {"leases": 1, "jobs": [job.pk], "seconds": seconds}
    return [Explanation("monitor_dead", text % {"id": job.pk, "time": span(seconds)}, evidence, _step())]


def _step() -> str:
    return gettext("Start a worker, or run reap_leases. If workers run, look at the log of their supervisors.")


@lru_cache(maxsize=8)
def _lapsed(using: str, seconds: float) -> Prepared:
    rows = Job.objects.using(using).filter(
        status=Unestimated(Job.Status.PROCESSING), lock_until__lt=UtcNowPlus(-seconds)
    )
    rows = vendor(using).force_index(rows.order_by("lock_until"), "ix_lease")
    return prepare_rows(rows.values_list("pk", "queue", Selected("lock_until"), Selected(UtcNow()))[:LEASES_MAX])
