"""Filters that are served by an index; the choices never come from SELECT DISTINCT over the table."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.formatting import plain
from jobqueue.admin.job_states import LABELS
from jobqueue.conf import load
from jobqueue.db.clock import UtcNow
from jobqueue.failures import FailureCause
from jobqueue.models import Job
from jobqueue.transitions.claiming.candidates import queue_names

QUEUES_SHOWN = 100


class StateFilter(SimpleListFilter):
    """The states people speak of; scheduled and expired are READY and PROCESSING seen against the clock."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """State names as on the command line."""
        return list(LABELS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows in the chosen state."""
        ready = {"status": Job.Status.READY}
        conditions: dict[str | None, dict[str, Any]] = {
            None: {},
            "ready": {**ready, "run_at__lte": UtcNow()},
            "scheduled": {**ready, "run_at__gt": UtcNow()},
            "running": {"status": Job.Status.PROCESSING},
            "expired": {"status": Job.Status.PROCESSING, "lock_until__lt": UtcNow()},
            "failed": {"status": Job.Status.FAILED},
            "canceled": {"status": Job.Status.CANCELED},
            "done": {"status": Job.Status.DONE},
        }
        if self.value() not in conditions:
            # An unknown state must not mean "all": the next click may be an action on what is listed.
            raise IncorrectLookupParameters
        return queryset.filter(**conditions[self.value()])


class QueueFilter(SimpleListFilter):
    """The queues that are in the table, by index seeks; the first 100."""

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Queue names."""
        return [(name, plain(name)) for name in queue_names(using=load().database, limit=QUEUES_SHOWN)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of the chosen queue."""
        value = self.value()
        if value is None:
            return queryset
        # PostgreSQL's driver refuses NUL with an error; no name has one.
        return queryset.none() if "\x00" in value else queryset.filter(queue=value)


class CauseFilter(SimpleListFilter):
    """Why dead jobs died."""

    title = _("cause of failure")
    parameter_name = "cause"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The cause classes."""
        return [(cause.value, CAUSES[cause]) for cause in FailureCause]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """FAILED rows of the chosen cause; what expired is CANCELED."""
        value = self.value()
        if value is None:
            return queryset
        if value not in CAUSES:
            raise IncorrectLookupParameters
        status = Job.Status.CANCELED if value == FailureCause.EXPIRED else Job.Status.FAILED
        return queryset.filter(status=status, cause=value)


CAUSES: dict[str, Any] = {
    FailureCause.FORMAT: _("format"),
    FailureCause.DEPENDENCY: _("dependency"),
    FailureCause.DATA: _("data"),
    FailureCause.RESOURCE: _("resource"),
    FailureCause.LOST: _("lease lost"),
    FailureCause.TIMEOUT: _("timeout"),
    FailureCause.EXPIRED: _("expired"),
    FailureCause.UNKNOWN: _("unknown"),
}
