"""Filters of jobs that an index serves; no choice comes from a SELECT DISTINCT over the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.states import ENDED, LABELS
from jobqueue.admin.page.causes import CAUSES
from jobqueue.admin.page.formatting import plain
from jobqueue.admin.page.readonly import ConditionFilter
from jobqueue.conf import load
from jobqueue.db.clock import UtcNow
from jobqueue.failures import FailureCause
from jobqueue.models import Job
from jobqueue.models.job import HELD_GATE
from jobqueue.transitions.claiming.candidates import queue_names

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

QUEUES_SHOWN = 100
_READY = {"status": Job.Status.READY}
_RUNNING = {"status": Job.Status.PROCESSING}


class StateFilter(ConditionFilter):
    """The states that pages show: scheduled and expired are READY and PROCESSING, compared with the clock."""

    labels = LABELS
    conditions = {
        "ready": {**_READY, "run_at__lte": UtcNow()},
        "scheduled": {**_READY, "run_at__gt": UtcNow()},
        "held": {**_READY, "gate": HELD_GATE},
        "running": _RUNNING,
        "expired": {**_RUNNING, "lock_until__lt": UtcNow()},
        **{state: {"status": status} for status, state in ENDED.items()},
    }


class CauseFilter(ConditionFilter):
    """Why FAILED jobs failed; jobs that expired are CANCELED."""

    title = _("cause of failure")
    parameter_name = "cause"
    labels = CAUSES
    conditions = {
        cause: {"status": Job.Status.CANCELED if cause == FailureCause.EXPIRED else Job.Status.FAILED, "cause": cause}
        for cause in FailureCause
    }


class QueueFilter(SimpleListFilter):
    """The first QUEUES_SHOWN queue names of the table, found by index seeks."""

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(name, plain(name)) for name in queue_names(using=load().database, limit=QUEUES_SHOWN)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        value = self.value()
        if value is None:
            return queryset
        # No queue name contains NUL, and PostgreSQL's driver raises an error for it.
        return queryset.none() if "\x00" in value else queryset.filter(queue=value)


class FingerprintFilter(SimpleListFilter):
    """The dead letters of one kind of failure, chosen by a link; shown while it is chosen."""

    title = _("fingerprint of the failure")
    parameter_name = "fingerprint"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, StrOrPromise]]:
        value = self.value()
        return [] if value is None else [(value, plain(value, 40))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        value = self.value()
        if value is None:
            return queryset
        known = len(value) == 16 and value.isascii() and value.isalnum()
        return queryset.filter(status=Job.Status.FAILED, fingerprint=value) if known else queryset.none()
