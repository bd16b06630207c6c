"""The page of all queues and circuit breakers: what is set, and how many jobs wait, run and have failed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import id_of
from jobqueue.admin.page.readonly import ReadOnlyAdmin
from jobqueue.admin.page.tables import table_of
from jobqueue.admin.queues import rows
from jobqueue.admin.queues.page import breaker_view, place_view
from jobqueue.admin.queues.rows import breaker_cells, queue_cells, queue_page
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.flow.breakers import breaker_facts
from jobqueue.flow.overview import known_names, queue_states
from jobqueue.models import FlowRule
from jobqueue.stats.live import COUNTS

QUEUES_SHOWN, BREAKERS_SHOWN = 50, 200
SEARCH_CHARS = 64
HEAD = (
    _("queue, task"),
    _("state"),
    _("ready"),
    _("Oldest"),
    _("scheduled"),
    _("held"),
    _("running"),
    _("failed"),
    _("concurrency"),
    _("rate"),
)
BREAKER_HEAD = (_("dependency"), _("state"), _("reason"), _("since"), _("what happens next"))


@admin.register(FlowRule)
class QueueAdmin(ReadOnlyAdmin):
    """The list, and a page for each queue, for each task in a queue, and for each circuit breaker."""

    actions = None
    list_display_links = None

    def get_urls(self) -> list[URLPattern]:
        """The pages of Django, and those of a queue and a breaker."""
        site = self.admin_site.admin_view
        own = [
            path("queue/", site(self.queue_view), name="jobqueue_flowrule_queue"),
            path("breaker/", site(self.breaker_view), name="jobqueue_flowrule_breaker"),
        ]
        return [*own, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list: names that contain what was searched for, QUEUES_SHOWN at a time, then all breakers."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        using = load().database
        query = request.GET.get("q", "").strip()[:SEARCH_CHARS]
        known = known_names(using=using)
        names = [name for name in known if query.casefold() in name.casefold()]
        page = Paginator(names, QUEUES_SHOWN).get_page(request.GET.get("p"))
        states = queue_states(using=using, names=list(page.object_list), most=rows.COUNT_MAX)
        is_capped = any((getattr(state, name) or 0) >= rows.COUNT_MAX for state in states for name in COUNTS)
        now, links = read_now(using), request.user.has_perm("jobqueue.view_job")
        context = {
            **self.admin_site.each_context(request),
            "title": capfirst(str(self.opts.verbose_name_plural)),
            "opts": self.opts,
            "media": self.media,
            "query": query,
            "page": page,
            "is_searchable": len(known) > 1,
            "table": table_of(HEAD, [queue_cells(state, now, links=links) for state in states]),
            "notes": [gettext("Counts stop at %(n)d.") % {"n": rows.COUNT_MAX}] if is_capped else [],
            **self._breakers(request),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/jobqueue/queues.html", context)

    def _breakers(self, request: HttpRequest) -> dict[str, Any]:
        """The first BREAKERS_SHOWN of them, and how many there are besides; None for those who may not see them."""
        if not request.user.has_perm("jobqueue.view_breakerstate"):
            return {"breakers": None}
        using = load().database
        now, found = read_now(using), breaker_facts(using=using)
        shown = [breaker_cells(facts, now) for facts in found[:BREAKERS_SHOWN]]
        return {"breakers": table_of(BREAKER_HEAD, shown), "more_breakers": len(found) - len(shown)}

    def queue_view(self, request: HttpRequest) -> HttpResponse:
        """The page of a queue, or of a task in it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return place_view(request, self.admin_site)

    def breaker_view(self, request: HttpRequest) -> HttpResponse:
        """The page of a circuit breaker."""
        if not (self.has_view_permission(request) and request.user.has_perm("jobqueue.view_breakerstate")):
            raise PermissionDenied
        return breaker_view(request, self.admin_site)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Lead from the address of a row, as Django's history has it, to the page of its queue."""
        row: Any = self.get_object(request, object_id)
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        if row is None:
            return super().change_view(request, object_id, form_url, extra_context)
        return HttpResponseRedirect(queue_page(row.queue, row.task or None))

    def row_name(self, object_id: object) -> str:
        """The queue or task of a row, which people know by its name and not by its number."""
        number = id_of(str(object_id))
        row = None if number is None else FlowRule.objects.using(load().database).filter(pk=number).first()
        return super().row_name(object_id) if row is None else str(row)
