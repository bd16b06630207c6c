"""What the job's own row tells: ended, quarantined, running, held, expired, unknown_task and not_due."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache

from django.db import Error, connections
from django.utils.translation import gettext

from jobqueue.base.payload import JSON
from jobqueue.db import vendor
from jobqueue.exceptions import NotSupported
from jobqueue.explain.explanation import CODES, Explanation, iso, reason_in_words, seconds_until, span
from jobqueue.explain.rows import ReadJob
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.masking import mask_text
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import ALONE_REASON, HELD_GATE, QUARANTINED
from jobqueue.ordering import KEY_GATE, SCHEDULED
from jobqueue.tasks import registry
from jobqueue.transitions.killing import kill_at

#: how the wait_reason of a job begins that a worker has parked because its code cannot run it: UnknownTask
_PARKED = re.compile(
    r"(task '.*' is not known to|no @handler for queue .* in|the payload has version .* in) this worker"
)


def ended(job: ReadJob) -> Explanation:
    """Explain a job that is DONE, FAILED or CANCELED."""
    status = Job.Status(job.status)
    at = job.finished_at or job.updated_at
    facts = {"id": job.pk, "time": span((job.now - at).total_seconds()), "n": job.attempts, "crashes": job.crashes}
    evidence: dict[str, JSON] = {"job_id": job.pk, "status": status.name, "finished_at": iso(job.finished_at)}
    evidence |= {"cause": job.cause, "attempts": job.attempts}
    if status is Job.Status.FAILED and job.wait_reason == QUARANTINED:
        text = gettext(
            "Job %(id)d is quarantined: its runs were lost %(crashes)d times, so it may have killed its workers."
        )
        step = gettext("Let it run alone, in a process of its own (jobs retry %(id)d --alone), or retry or discard it.")
        return Explanation("quarantined", text % facts, evidence | {"crashes": job.crashes}, step % facts)
    if status is Job.Status.FAILED:
        text = gettext("Job %(id)d failed %(time)s ago, after %(n)d failed attempts.")
        step = gettext("Read its error (jobs show %(id)d), then retry or discard it: nothing happens by itself.")
    elif status is Job.Status.CANCELED:
        text = gettext("Job %(id)d was canceled %(time)s ago.")
        step = gettext("Nothing is needed. To run it after all, retry it.")
    else:
        text = gettext("Job %(id)d was done %(time)s ago.")
        step = gettext("Nothing is needed.")
    return Explanation("ended", text % facts, evidence, step % facts)


def running(job: ReadJob) -> Explanation:
    """Explain a job that is PROCESSING."""
    # Plain SQL may have written a lease that no driver can read.
    since = job.locked_at or job.updated_at
    lapsed, asked = job.lock_until is None or job.lock_until < job.now, job.cancel_requested_at is not None
    killed_at = _kill_at(job) if asked else None
    facts = {"id": job.pk, "worker": job.locked_by, "time": span((job.now - since).total_seconds())}
    if lapsed:
        text = gettext("Job %(id)d was started %(time)s ago by %(worker)s, and its lease has expired.")
        step = gettext("A worker or reap_leases ends the lease within seconds: the job is then ready again, or ended.")
    elif killed_at is not None:
        text = gettext(
            "Job %(id)d has been running for %(time)s in %(worker)s, and was asked to stop. If it has not stopped in "
            "%(left)s, its process is killed."
        )
        facts["left"] = span(seconds_until(killed_at, job.now))
        step = gettext("Wait: it stops when it looks at should_stop, runs to its end, or is killed then.")
    elif asked:
        text = gettext("Job %(id)d has been running for %(time)s in %(worker)s, and was asked to stop.")
        step = gettext("Wait: it stops when it looks at should_stop, or runs to its end.")
    else:
        text = gettext("Job %(id)d has been running for %(time)s in %(worker)s.")
        step = gettext("Wait for its end, or cancel it.")
    evidence: dict[str, JSON] = {
        "job_id": job.pk,
        "worker": job.locked_by,
        "since": iso(since),
        "lease_until": iso(job.lock_until),
        "lease_expired": lapsed,
        "cancel_requested": asked,
        "kill_at": iso(killed_at),
        "attempt": job.attempt,
    }
    return Explanation("running", text % facts, evidence, step)


def _kill_at(job: ReadJob) -> datetime | None:
    # Not job.options: the row may be gone by now.
    rows = Job.objects.using(job._state.db).filter(pk=job.pk)
    return kill_at(rows.values_list("options", flat=True).first(), job.fence)


def held(job: ReadJob) -> list[Explanation]:
    """held, if the job waits for retry or discard."""
    if job.gate != HELD_GATE:
        return []
    if job.wait_reason == ALONE_REASON:
        text = gettext(
            "Job %(id)d is held: it is to run in a process of its own, and the last such run was interrupted."
        )
        step = gettext("The next free worker of its queue runs it alone. To run it among other jobs, retry it.")
    else:
        text = gettext("Job %(id)d is held: its worker process died, or its lease ran out, and on_crash is hold.")
        step = gettext("Check whether it has done its work, then retry or discard it: nothing happens by itself.")
    evidence: dict[str, JSON] = {"job_id": job.pk, "crashes": job.crashes}
    evidence["wait_reason"] = mask_text(job.wait_reason or "") or None
    evidence |= {"attempts": job.attempts, "last_worker": job.last_worker}
    return [Explanation("held", text % {"id": job.pk}, evidence, step)]


def expired(job: ReadJob) -> list[Explanation]:
    """expired, if expires_at comes before the job can start."""
    if job.expires_at is None or job.expires_at > max(job.now, job.run_at):
        return []
    evidence: dict[str, JSON] = {"job_id": job.pk, "expires_at": iso(job.expires_at), "run_at": iso(job.run_at)}
    if job.expires_at <= job.now:
        text = gettext("Job %(id)d expired %(time)s ago, before it was started.")
    else:
        text = gettext("Job %(id)d expires in %(time)s, before it is due.")
    facts = {"id": job.pk, "time": span((job.now - job.expires_at).total_seconds())}
    if job.gate:
        # No claim reads it there.
        step = gettext("When it is let in, the next worker of its queue cancels it. To run it all the same, retry it.")
    else:
        step = gettext("The next worker of its queue that reads it cancels it. To run it all the same, retry it.")
    return [Explanation("expired", text % facts, evidence, step)]


def not_due(job: ReadJob) -> list[Explanation]:
    """unknown_task, if a worker has parked the job for that; else not_due, if its run_at has not come."""
    if job.gate != 0 or job.run_at <= job.now:
        return []
    if is_parked(job.wait_reason):
        text = gettext("A worker has read job %(id)d and cannot run it: %(reason)s")
        one = due_later(job, job.now, text, {})
        step = gettext("Deploy code that can run it to the workers of queue %(queue)s. They look again in %(time)s.")
        step = step % {"queue": job.queue, "time": span(seconds_until(job.run_at, job.now))}
        return [Explanation("unknown_task", one.text, one.evidence | _task_of(job), step)]
    if job.wait_reason in (None, SCHEDULED):
        return [due_later(job, job.now, gettext("Job %(id)d is due in %(time)s."), {})]
    return [due_later(job, job.now, gettext("Job %(id)d is due in %(time)s. It waits because of: %(reason)s"), {})]


def due_later(job: ReadJob, now: datetime, text: str, subject: dict[str, JSON], **more: object) -> Explanation:
    """not_due of a job, in these words. `subject`: evidence besides that of the job; `more`: facts for `text`."""
    seconds, reason = seconds_until(job.run_at, now), mask_text(job.wait_reason or "")
    facts = {"id": job.pk, "queue": job.queue, "time": span(seconds), "reason": reason} | more
    evidence = subject | {
        "job_id": job.pk,
        "run_at": iso(job.run_at),
        "seconds": seconds,
        "wait_reason": reason or None,
    }
    step = gettext("Wait, or let it run now (jobs retry %(id)d).")
    return Explanation("not_due", text % facts, evidence, step % facts)


def at_a_gate(job: ReadJob, *, looked: bool = True) -> Explanation:
    """Of a job whose gate is closed, by the code of its wait_reason: nothing is found that it waits for.

    If not `looked`, that was not looked at.
    """
    code = (job.wait_reason or "").partition(" ")[0]
    known = job.gate in (KEY_GATE, FLOW_GATE, PARENTS_GATE)
    facts = {"id": job.pk, "gate": job.gate, "reason": reason_in_words(job.wait_reason, job.gate) or "-"}
    if known and not looked:
        text = gettext("Job %(id)d waits at a gate (%(reason)s). What holds it there now was not looked at.")
        step = gettext("Wait until the gate is opened. To see what holds it: jobs explain %(id)d --all-causes.")
    elif known:
        text = gettext("Job %(id)d waits at a gate (%(reason)s), but nothing holds it there any more.")
        step = gettext("Wait: workers open such gates within a minute.")
    else:
        text = gettext("Job %(id)d waits at gate %(gate)d, which this release does not know. Wait reason: %(reason)s")
        step = gettext("Find out who has set this gate. Cancel the job if nobody will open it.")
    if code not in CODES or CODES[code].words is None:
        code = "key" if job.gate == KEY_GATE else "held"
    evidence: dict[str, JSON] = {
        "job_id": job.pk,
        "gate": job.gate,
        "wait_reason": mask_text(job.wait_reason or "") or None,
    }
    return Explanation(code, text % facts, evidence, step % facts)


def _is_known(task: str) -> bool:
    return registry.find_task(task) is not None or (_import_tasks() and registry.find_task(task) is not None)


@cache
def _import_tasks() -> bool:
    """Import each tasks.py, once: a web process imports only what its pages use."""
    list(registry.discover())
    return True


def unknown_here(job: ReadJob) -> list[Explanation]:
    """unknown_task, if this process does not know what the job calls. Workers may."""
    if job.task is None:
        if registry.find_handler(job.queue) is not None or (_import_tasks() and registry.find_handler(job.queue)):
            return []
        text = gettext("Job %(id)d names no task, and this process knows no handler of queue %(queue)s.")
    elif not _is_known(job.task):
        text = gettext("Job %(id)d is of task %(task)s, which this process does not know.")
    else:
        return []
    facts = {"id": job.pk, "queue": job.queue, "task": job.task}
    evidence: dict[str, JSON] = {"job_id": job.pk, "wait_reason": mask_text(job.wait_reason or "") or None}
    step = gettext(
        "Nothing is needed if the workers know it. A worker that does not know it puts the job back for a minute, "
        "again and again."
    )
    return [Explanation("unknown_task", text % facts, evidence | _task_of(job), step)]


def is_parked(wait_reason: str | None) -> bool:
    """Whether a worker has put the job back because its code cannot run it."""
    return _PARKED.match(wait_reason or "") is not None


def _task_of(job: ReadJob) -> dict[str, JSON]:
    known = registry.find_handler(job.queue) if job.task is None else registry.find_task(job.task)
    return {"task": job.task, "queue": job.queue, "known_here": known is not None}


#: a due time that is so close to the offset of the zone is told
CLOSE = timedelta(seconds=5)


def zone_offset(using: str) -> timedelta:
    """How far NOW() of a session is ahead of UTC; 0 where instants have a zone. One statement on MySQL and MariaDB."""
    try:
        return timedelta(seconds=vendor(using).zone_seconds(connections[using]) or 0.0)
    except (Error, NotSupported):
        return timedelta(0)


def is_in_zone(run_at: datetime, created_at: datetime, now: datetime, offset: timedelta) -> bool:
    """Whether `run_at` of a job that has never run may be NOW() of its enqueue, in a zone that is ahead of UTC."""
    if offset <= CLOSE:
        return False
    # The statement may have written NOW() into both.
    created = created_at - offset if created_at > now + CLOSE else created_at
    return abs(run_at - created - offset) <= CLOSE


def note_zone(found: list[Explanation], job: ReadJob, using: str) -> list[Explanation]:
    """`found`, in which not_due says so if the zone of sessions may be the reason. A statement if it is not_due."""
    if job.attempts or job.wait_reason not in (None, SCHEDULED) or not any(one.code == "not_due" for one in found):
        return found
    offset = zone_offset(using)
    if not is_in_zone(job.run_at, job.created_at, job.now, offset):
        return found
    return [_noted(one, job, offset) if one.code == "not_due" else one for one in found]


def _noted(one: Explanation, job: ReadJob, offset: timedelta) -> Explanation:
    facts = {"text": one.text, "zone": span(offset.total_seconds()), "id": job.pk}
    text = gettext(
        "%(text)s That is as long after its enqueue as NOW() of a session is ahead of UTC (%(zone)s): plain SQL may "
        "have written NOW() into run_at, which is UTC."
    )
    step = gettext(
        "If it should have been due at once, let it run now (jobs retry %(id)d), and write UTC_TIMESTAMP(6) in that "
        "SQL."
    )
    evidence = one.evidence | {"zone_seconds": offset.total_seconds()}
    return replace(one, text=text % facts, evidence=evidence, next_step=step % facts)
