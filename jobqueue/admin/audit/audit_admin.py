"""The audit: bulk actions with their progress, and the records of single verbs. Nothing of it can be edited."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.audit.bulk_page import filter_words, matched_words, new_bulk
from jobqueue.admin.audit.recording import PERMISSIONS, permitted
from jobqueue.admin.audit.recording import stop as stop_event
from jobqueue.admin.page.formatting import NOTHING, badge, job_link, moment_of, name_of, number, plain, stamp
from jobqueue.admin.page.history import NAME_CHARS
from jobqueue.admin.page.readonly import Facts
from jobqueue.admin.page.tables import Column, Table, table_of
from jobqueue.admin.page.verb_admin import RunAdmin, stop_each
from jobqueue.models import AuditEvent, Job

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownEvent = WithAnnotations[AuditEvent, Facts]


#: entries of one read, and reads of one page
WINDOW, WINDOWS_MAX = 10_000, 5


class Records(NamedTuple):
    """A page of records. `older`: the id below which the next page begins; None: there is none."""

    table: Table
    older: int | None


def records(most: int, *, before: int | None = None) -> Records:
    """The newest `most` records, of those with an id below `before`."""
    kinds = {kind.pk: kind.model for kind in ContentType.objects.filter(app_label="jobqueue")}
    found, below = _newest([*kinds], most + 1, before)
    # One more than is shown says whether there are more.
    shown = found[:most]
    columns = (Column(gettext("when")), Column(gettext("user")), Column(gettext("row")), Column(gettext("what")))
    table = table_of(
        columns,
        [
            (
                stamp(row.action_time),
                plain(row.user.get_username(), NAME_CHARS),
                _row(row, kinds.get(row.content_type_id or 0, "")),
                plain(row.get_change_message(), NAME_CHARS) or NOTHING,
            )
            for row in shown
        ],
    )
    return Records(table, shown[-1].pk if len(found) > most else below)


def _newest(kinds: list[int], most: int, before: int | None) -> tuple[list[LogEntry], int | None]:
    """Up to `most` entries of these models below the id `before`; and the id below which others may be, if not all
    were looked at.

    By ranges of the primary key: no index has the entries of some models in order, and those of other apps may be many.
    """
    found: list[LogEntry] = []
    rows = LogEntry.objects.order_by("-pk")
    for turn in range(WINDOWS_MAX + 1):
        top = (rows if before is None else rows.filter(pk__lt=before)).values_list("pk", flat=True).first()
        if top is None:
            return found, None
        if turn == WINDOWS_MAX:
            break
        window = rows.filter(pk__lte=top, pk__gt=top - WINDOW, content_type_id__in=kinds).select_related("user")
        found += window[: most - len(found)]
        if len(found) == most:
            return found, None
        before = top - WINDOW + 1
    return found, before


def _row(entry: LogEntry, model: str) -> str:
    number = entry.object_id or ""
    if model == Job._meta.model_name and number.isascii() and number.isdigit() and len(number) < 19:
        return job_link(int(number))
    return plain(entry.object_repr, NAME_CHARS)


RECORDS_SHOWN, RECORDS_OF_PAGE = 20, 100
REASON_SHOWN = 80
#: seconds between two looks at the progress, as a page offers them; 0 is off
REFRESHES = (0, 2, 5, 15, 60)
_BADGES = {"waiting": "ready", "running": "running", "done": "done", "stopped": "canceled", "failed": "failed"}


@admin.action(description=_("Stop (no more jobs are changed by it)"), permissions=["stop"])
def stop(model_admin: AuditEventAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End bulk actions that are under way, of verbs that this user may apply."""

    def told(stopped: int) -> str:
        return ngettext("%(n)d bulk action was stopped.", "%(n)d bulk actions were stopped.", stopped) % {"n": stopped}

    stop_each(model_admin, request, queryset, partial(stop_event, request), told)


@admin.register(AuditEvent)
class AuditEventAdmin(RunAdmin):
    """Bulk actions above, single verbs below."""

    change_list_template = "admin/jobqueue/audit.html"
    change_form_template = "admin/jobqueue/audit_event.html"
    actions = (stop,)
    list_display = ("id", "state", "what", "chosen", "progress", "who", "why", "begun")
    fields = (
        "state", "what", "chosen", "progress", "refused_jobs", "who", "whole_reason", "end", "created", "started",
        "finished",
    )  # fmt: skip
    readonly_fields = fields
    whole_reason, end = name_of(AuditEvent, "reason"), name_of(AuditEvent, "problem")
    created, started = moment_of(AuditEvent, "created_at"), moment_of(AuditEvent, "started_at")
    finished = moment_of(AuditEvent, "ended_at")

    class Media:
        css = {"all": ("jobqueue/bulk.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Without the redrives, which have a page of their own."""
        return super().get_queryset(request).filter(kind=AuditEvent.Kind.BULK)

    def has_stop_permission(self, request: HttpRequest) -> bool:
        """Whether this user may stop any bulk action. stop() checks the permission for the verb of each."""
        return bool(permitted(request))

    def get_urls(self) -> list[URLPattern]:
        """The pages of Django, the page that starts a bulk action, and that of single verbs."""
        view = self.admin_site.admin_view
        return [
            path("new/", view(self.new_view), name="jobqueue_auditevent_new"),
            path("verbs/", view(self.verbs_view), name="jobqueue_auditevent_verbs"),
            *super().get_urls(),
        ]

    def new_view(self, request: HttpRequest) -> HttpResponse:
        """The page that applies a verb to all jobs that match, after a preview."""
        return new_bulk(request, self.admin_site)

    def verbs_view(self, request: HttpRequest) -> HttpResponse:
        """The records of single verbs, a page at a time."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        given = request.GET.get("before", "")
        before = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else None
        found = records(RECORDS_OF_PAGE, before=before)
        context = self.admin_site.each_context(request) | {
            "title": gettext("Single verbs"), "opts": self.opts, "media": self.media,
            "table": found.table, "older": found.older,
        }  # fmt: skip
        return TemplateResponse(request, "admin/jobqueue/single_verbs.html", context)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list, with the newest single verbs below it."""
        own: dict[str, object] = {}
        if request.method == "GET" and self.has_view_permission(request):
            found = records(RECORDS_SHOWN)
            own = {"table": found.table, "older": found.older}
        return super().changelist_view(request, own | (extra_context or {}))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Offer to refresh the page."""
        return super().render_change_form(request, context | {"refreshes": REFRESHES}, *args, **kwargs)

    def may_stop(self, request: HttpRequest, run: AuditEvent) -> bool:
        return run.verb in permitted(request)

    @admin.display(description=_("state"))
    def state(self, event: ShownEvent) -> str:
        return badge(_BADGES.get(event.phase, "done"), str(event.get_phase_display()))

    @admin.display(description=_("verb"))
    def what(self, event: ShownEvent) -> str:
        return str(event.get_verb_display()) if event.verb in PERMISSIONS else plain(event.verb, 16)

    @admin.display(description=_("filter"))
    def chosen(self, event: ShownEvent) -> str:
        """Such as "state: failed, queue: mail"."""
        return filter_words(event.filters) if isinstance(event.filters, dict) else plain(event.filters, 200)

    @admin.display(description=_("changed jobs"))
    def progress(self, event: ShownEvent) -> str:
        """Such as "20 / 100", with a bar that shows how many of the ids have been looked at."""
        text = f"{number(event.changed)} / {matched_words(event.matched)}"
        if event.ended_at is not None:
            return text
        bar = '<span class="jobqueue-bulk-progress">{} <progress max="{}" value="{}" aria-label="{}"></progress></span>'
        return format_html(bar, text, max(event.until_id, 1), event.after_id, gettext("progress"))

    @admin.display(description=_("not changed jobs"))
    def refused_jobs(self, event: ShownEvent) -> str:
        return number(event.refused)

    @admin.display(description=_("user"))
    def who(self, event: ShownEvent) -> str:
        """The user, or the program if it was no user."""
        return plain(event.user_name or event.program or NOTHING, 150)

    @admin.display(description=_("reason"))
    def why(self, event: ShownEvent) -> str:
        return plain(event.reason, REASON_SHOWN) or NOTHING
