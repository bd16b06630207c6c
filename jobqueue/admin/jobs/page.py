"""The page of a job: what a person reads of it, from top to bottom."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

from django.db.models.functions import Right
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.dead_letters.failures import note_block
from jobqueue.admin.jobs import page_fields
from jobqueue.admin.jobs.actions import BUTTONS, EXTEND_SECONDS, EXTENSIONS, SECONDS
from jobqueue.admin.jobs.states import ShownJob, state_label, state_of, verbs_of
from jobqueue.admin.jobs.timeline import timeline
from jobqueue.admin.page.addresses import address_of, link, page_address
from jobqueue.admin.page.formatting import (
    CAUSES,
    NOTHING,
    REQUESTED,
    StrOrPromise,
    badge,
    error_line,
    label,
    masked_block,
    moment,
    plain,
    relative,
    short_class,
    short_worker,
    span,
)
from jobqueue.admin.page.history import recent
from jobqueue.admin.page.tables import Fact, facts
from jobqueue.admin.page.verb_admin import Button
from jobqueue.base.payload import JSON
from jobqueue.conf import load
from jobqueue.context.progress import read_progress
from jobqueue.explain import Explanation
from jobqueue.explain.database import Stopwatch
from jobqueue.explain.explanation import CODES
from jobqueue.explain.jobs import explain_row
from jobqueue.maintenance.worker_rows import state_of as state_of_worker
from jobqueue.masking import mask_tail
from jobqueue.models import Job, JobAttempt, LaneEntry, Worker
from jobqueue.models.job import QUARANTINED
from jobqueue.ordering import SCHEDULED
from jobqueue.runs.alone import is_requested
from jobqueue.transitions.killing import kill_at


class Progress(NamedTuple):
    """A report: its text, and of one with a total the value and the end of its bar."""

    text: str
    value: float | None
    total: float | None


def job_page(job: ShownJob, request: HttpRequest, permitted: Container[str], *, shows_content: bool) -> dict[str, Any]:
    """The parts of the page for this user, who may use the `permitted` verbs; an empty one is left out.

    About ten statements, each by an index.
    """
    rows, reasons = read_attempts(job.pk), reasons_of(job)
    buttons = buttons_of(job, permitted)
    note = note_block(job.fingerprint, request) if job.fingerprint else NOTHING
    own_error = bool(job.last_error) and not (rows and ends_with_error_of(job, rows[0]))
    more = gettext("Only the newest %(n)d attempts are shown.") % {"n": ATTEMPTS_SHOWN}
    return {
        "state": badge(state_of(job), state_label(job)),
        "line": page_fields.header(job, request),
        "next": what_next(job, reasons),
        "progress": _progress(job),
        "reasons": listed(reasons),
        "edit": edit_address(job, request),
        "buttons": [one for one in buttons if one.name not in OF_LEASES],
        "lease": lease_of(job, request),
        "lease_buttons": [one for one in buttons if one.name in OF_LEASES],
        "timeline": timeline(job, rows[:ATTEMPTS_SHOWN]),
        "failure": page_fields.failure(job, note, request, is_told=bool(rows)),
        # The last error, if it is that of no attempt.
        "error": end_of(job.last_error or "", NEWEST_CHARS) if own_error else "",
        "attempts": panels(job, rows),
        "more": more if len(rows) > ATTEMPTS_SHOWN else "",
        "content": page_fields.content(job) if shows_content else [],
        "details": page_fields.details(job, request),
        "internals": page_fields.internals(job),
        "history": recent(Job, job.pk),
    }


def edit_address(job: ShownJob, request: HttpRequest) -> str:
    """The page that changes a job that waits; "" of others, and for users who may not do that."""
    waits = job.status == Job.Status.READY and request.user.has_perm("jobqueue.edit_job")
    return address_of("job_edit", job.pk) if waits else ""


def _progress(job: ShownJob) -> Progress | None:
    """The last report of a job that has not ended well."""
    found = None if job.status == Job.Status.DONE else read_progress(job.progress)
    if found is None:
        return None
    known = found.total is not None and found.total > 0
    return Progress(plain(found), found.done if known else None, found.total if known else None)


def what_next(job: ShownJob, reasons: Sequence[Explanation]) -> str:
    """A sentence on what happens to a job next if nobody changes it. `reasons`: why it waits, if it does."""
    state = state_of(job)
    if state in ("ready", "scheduled"):
        return _waiting(job, reasons)
    if state == "expired":
        return gettext("Its lease has expired. The next reaper makes it ready again, or ends it if no attempt is left.")
    kill = kill_at(job.options, job.fence) if job.cancel_requested_at is not None else None
    if state == "running" and kill is not None:
        left = span(max(0.0, (kill - job.now).total_seconds()))
        return gettext("It was canceled. If it still runs in %(time)s, its worker process is killed.") % {"time": left}
    if state == "running":
        text = gettext("Its worker renews the lease while the job runs. Without renewal the lease ends in %(time)s.")
        return text % {"time": span((job.lock_until - job.now).total_seconds())}
    if state in ("held", "failed") and is_requested(job.pk, using=load().database):
        text = gettext("The next free worker of queue %(queue)s runs it alone, in a process of its own.")
        return text % {"queue": plain(job.queue)}
    if state == "held":
        return gettext("Nothing, until it is retried or discarded: its worker process died, or its lease ran out.")
    if state == "failed" and job.wait_reason == QUARANTINED:
        return gettext("Nothing, until it is retried or discarded. It killed its workers: run it alone.")
    if state == "failed" and _blocks_its_key(job):
        return gettext("Nothing, until it is retried or discarded. Later jobs of its ordering key wait for that.")
    if state == "failed":
        return gettext("Nothing, until it is retried or discarded.")
    return gettext("Nothing: it has ended.")


def _blocks_its_key(job: ShownJob) -> bool:
    entries = LaneEntry.objects.using(load().database)
    return job.ordering_key is not None and entries.filter(job_id=job.pk).exists()


def _waiting(job: ShownJob, reasons: Sequence[Explanation]) -> str:
    """The sentence for a job that is ready: when it starts, as far as that is known."""
    facts = {"queue": plain(job.queue), "time": span((job.run_at - job.now).total_seconds())}
    if job.expires_at is not None and job.expires_at <= max(job.now, job.run_at):
        text = gettext("It expires before it can start. The next worker of queue %(queue)s that reads it cancels it.")
        return text % facts
    code = reasons[0].code
    if code == "not_due":
        text = gettext("It is due in %(time)s. Then the next free worker of queue %(queue)s starts it.") % facts
    elif code == "workers_busy":
        text = gettext("The next free worker of queue %(queue)s starts it.") % facts
    else:
        return gettext("It starts when none of the reasons below holds it back any more.")
    if job.wait_reason and job.wait_reason != SCHEDULED:
        text += " " + gettext("Wait reason: %(reason)s") % {"reason": plain(short_class(job.wait_reason))}
    return text


#: verbs on the lease, whose buttons stand beside what is said of it
OF_LEASES = ("extend", "release")
_RUNNING = ("running", "expired")
_NOTES: dict[str, StrOrPromise] = {
    "retry": _("It runs again as soon as a worker is free, with new attempts."),
    "run_alone": _("It runs in a worker process of its own, so that a crash ends no other job."),
    "cancel": _("It ends and does not run."),
    "kill": _("It is asked to stop, and after some time its worker process is killed. The next page asks first."),
    "discard": _("It leaves the dead letters and does not run again."),
    "extend": _(
        "Until then nobody takes the job away, even if its worker does not renew the lease. A worker that renews it "
        "sets the end anew."
    ),
    "release": _(
        "The job is taken from its worker, and another one may start it at once. If the first run still works, both "
        "runs may do their work; the first one cannot end the job any more."
    ),
}
#: (verb, state) -> a note that replaces the usual one
_NOTES_IN: dict[tuple[str, str], StrOrPromise] = {
    ("retry", "scheduled"): _("It runs as soon as a worker is free, and does not wait for its time."),
    ("retry", "held"): _("It runs as soon as a worker is free, among other jobs."),
    ("cancel", "running"): _("It is asked to stop, and ends as canceled if it looks at should_stop."),
    ("cancel", "expired"): _("It ends as canceled when its lease is ended."),
    ("discard", "ready"): _("The same as Cancel for a job that waits."),
    ("discard", "scheduled"): _("The same as Cancel for a job that waits."),
    ("discard", "held"): _("The same as Cancel for a job that waits."),
}


def label_of(name: str, job: ShownJob) -> StrOrPromise:
    """The label of a verb: a job that has not run yet is not "retried", and a running one is asked to stop."""
    state = state_of(job)
    if name == "retry" and state == "scheduled" and not job.attempts:
        return _("Run now")
    return _("Ask to stop") if name == "cancel" and state in _RUNNING else BUTTONS[name]


def buttons_of(job: ShownJob, permitted: Container[str]) -> list[Button]:
    """Those that can change the job now, and that are among the permitted ones."""
    state = state_of(job)
    return [
        Button(name, label_of(name, job), _NOTES_IN.get((name, state), _NOTES[name]))
        for name in verbs_of(job)
        if name in permitted
    ]


#: hexadecimal digits of the token that are shown: enough to compare it with a log, too few to end the lease with it
TOKEN_DIGITS = 8
_WORKER_COLUMNS = ("pk", "name", "heartbeat_at", "heartbeat_seconds", "stopped_at", "stop_reason")


class Lease(NamedTuple):
    """The facts, and the name and choices (seconds, words, whether it is chosen) of the field of an extension."""

    facts: list[Fact]
    field: str
    choices: list[tuple[int, StrOrPromise, bool]]


def lease_of(job: ShownJob, request: HttpRequest) -> Lease | None:
    """The lease of a job that is PROCESSING; None of others."""
    if job.status != Job.Status.PROCESSING:
        return None
    rows = Worker.objects.using(load().database).filter(name=job.locked_by)
    worker = rows.only(*_WORKER_COLUMNS).first()
    holder = plain(job.locked_by or "")
    if worker is not None and request.user.has_perm("jobqueue.view_worker"):
        holder = link(page_address("worker", worker.pk), holder)
    found = facts(
        (_("Held by"), holder),
        (_("State of the worker"), "" if worker is None else _worker_state(worker, job)),
        (_("Held since"), moment(job.locked_at, job.now)),
        (_("Lease ends"), moment(job.lock_until, job.now)),
        (_("token"), bytes(job.lock_token or b"").hex()[:TOKEN_DIGITS]),
        (_("fence"), job.fence),
    )
    return Lease(found, SECONDS, [(key, word, key == EXTEND_SECONDS) for key, word in EXTENSIONS.items()])


def _worker_state(worker: Worker, job: ShownJob) -> str:
    if worker.stopped_at is not None:
        reason = {"reason": plain(worker.stop_reason)}
        return badge("canceled", gettext("stopped: %(reason)s") % reason if worker.stop_reason else gettext("stopped"))
    silent = state_of_worker(worker, job.now) == "silent"
    state = badge("expired", gettext("no heartbeat")) if silent else badge("running", gettext("running"))
    ago = {"time": relative(worker.heartbeat_at, job.now)}
    said = gettext("last heartbeat %(time)s") % ago
    if worker.heartbeat_seconds:
        said += ", " + gettext("one every %(time)s") % {"time": span(worker.heartbeat_seconds)}
    return format_html("{} {}", state, said)


TEXT_CHARS = 1000


#: of a step, what is for the command line: the page has links instead
_COMMAND = re.compile(r" \(jobs [^()]*\)")
#: evidence with ids of other jobs
_JOBS = ("first_job", "probe_job", "jobs")


class Reason(NamedTuple):
    """A sentence, what one can do about it, and links to what it is about."""

    text: str
    step: str
    links: list[str]


def reasons_of(job: ShownJob) -> list[Explanation]:
    """What explain_job() finds of a job that is READY; [] of others."""
    if job.status != Job.Status.READY:
        return []
    using = load().database
    # A page has a time limit of its own.
    return explain_row(job, using, Stopwatch(using, measures=False))


def listed(found: Sequence[Explanation]) -> list[Reason]:
    """The reasons; none if the job only waits for its time or for a free worker, which the page says anyway."""
    if all(one.code == "not_due" or (one.code == "workers_busy" and not one.evidence.get("full")) for one in found):
        return []
    return [
        Reason(plain(one.text, TEXT_CHARS), plain(_COMMAND.sub("", one.next_step), TEXT_CHARS), _links_of(one))
        for one in found
    ]


def _links_of(one: Explanation) -> list[str]:
    """To the other jobs that it names, and to the page on which its next step is done."""
    ids = [job_id for name in _JOBS for job_id in _ids(one.evidence.get(name))]
    found = [(page_address("job", job_id), gettext("job %(id)d") % {"id": job_id}) for job_id in dict.fromkeys(ids)]
    queue, dependency = one.evidence.get("queue"), one.evidence.get("dependency")
    if CODES[one.code].on_queue_page and isinstance(queue, str):
        task = one.evidence.get("task")
        asked = {"queue": queue, **({"task": task} if isinstance(task, str) else {})}
        found.append((address_of("flowrule_queue", **asked), gettext("queue %(queue)s") % {"queue": plain(queue)}))
    if isinstance(dependency, str):
        found.append((address_of("flowrule_breaker", dependency=dependency), plain(dependency)))
    return [link(address, text) for address, text in found if address]


def _ids(value: JSON) -> list[int]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)]


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
        error_line(row.tail, read=ATTEMPT_CHARS, most=NOTE_CHARS) or NOTHING,
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
