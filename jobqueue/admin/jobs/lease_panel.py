"""What is known of the lease of a running job: who holds it, until when, and whether its worker is still heard of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.actions import EXTEND_SECONDS, EXTENSIONS, SECONDS
from jobqueue.admin.page.addresses import link, page_address
from jobqueue.admin.page.facts import Fact, facts
from jobqueue.admin.page.formatting import badge, moment, plain, relative, span
from jobqueue.conf import load
from jobqueue.maintenance.worker_list import state_of
from jobqueue.models import Job, Worker

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from jobqueue.admin.jobs.states import ShownJob

#: hexadecimal digits of the token that are shown: enough to compare it with a log, too few to end the lease with it
TOKEN_DIGITS = 8
_COLUMNS = ("pk", "name", "heartbeat_at", "heartbeat_seconds", "stopped_at", "stop_reason")


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
    worker = rows.only(*_COLUMNS).first()
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
        return badge("expired", gettext("stopped: %(reason)s") % reason if worker.stop_reason else gettext("stopped"))
    silent = state_of(worker, job.now) == "silent"
    state = badge("expired", gettext("no heartbeat")) if silent else badge("running", gettext("running"))
    ago = {"time": relative(worker.heartbeat_at, job.now)}
    said = gettext("last heartbeat %(time)s") % ago
    if worker.heartbeat_seconds:
        said += ", " + gettext("one every %(time)s") % {"time": span(worker.heartbeat_seconds)}
    return format_html("{} {}", state, said)
