"""The dead letters in groups of the same failure, and the redrives that bring them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue import dead_letters
from jobqueue.admin.dead_letters.failures import failure_table
from jobqueue.admin.dead_letters.redrive_page import log_stop, may_redrive, new_redrive
from jobqueue.admin.page.formatting import NOTHING, badge, job_link, moment_of, name_of, plain
from jobqueue.admin.page.readonly import Facts
from jobqueue.admin.page.verb_admin import RunAdmin, stop_each
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.dead_letters.listing import groups_of, newest_rows
from jobqueue.dead_letters.recording import redriven_of
from jobqueue.models import Redrive
from jobqueue.runs.job_filter import DeadFilter

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownRedrive = WithAnnotations[Redrive, Facts]

#: dead letters that are put into groups, and groups that are shown
GROUPED_MAX, GROUPS_SHOWN = 5_000, 50
_BADGES = {"canary": "scheduled", "running": "running", "done": "done", "stopped": "canceled"}


@admin.action(description=_("Stop (no more jobs are retried by it)"), permissions=["redrive"])
def stop(model_admin: RedriveAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End redrives that are under way."""

    def stop_one(run: Redrive) -> bool:
        stopped = dead_letters.stop(run.pk, using=load().database)
        if stopped:
            log_stop(request, run.pk)
        return stopped

    def told(stopped: int) -> str:
        return ngettext("%(n)d redrive was stopped.", "%(n)d redrives were stopped.", stopped) % {"n": stopped}

    stop_each(model_admin, request, queryset.only("pk"), stop_one, told)


@admin.register(Redrive)
class RedriveAdmin(RunAdmin):
    """The page: groups above, redrives below."""

    change_list_template = "admin/jobqueue/redrives.html"
    actions = (stop,)
    list_display = ("id", "state", "progress", "chosen", "pace", "why", "begun")
    list_defer = ("pending", "canaries")
    fields = ("state", "why", "progress", "refused", "chosen", "pace", "created", "updated", "finished")
    readonly_fields = fields
    why = name_of(Redrive, "problem")
    created, updated = moment_of(Redrive, "created_at"), moment_of(Redrive, "updated_at")
    finished = moment_of(Redrive, "ended_at")

    def has_redrive_permission(self, request: HttpRequest) -> bool:
        """Whether this user may stop redrives."""
        return request.user.has_perm("jobqueue.redrive_jobs")

    def may_stop(self, request: HttpRequest, run: Redrive) -> bool:
        return self.has_redrive_permission(request)

    def get_urls(self) -> list[URLPattern]:
        """The pages of Django, and the page that starts a redrive."""
        view = self.admin_site.admin_view(self.new_view)
        return [path("new/", view, name="jobqueue_redrive_new"), *super().get_urls()]

    def new_view(self, request: HttpRequest) -> HttpResponse:
        """The page that starts a redrive, after a preview."""
        return new_redrive(request, self.admin_site)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list, with the groups for users who may see jobs."""
        own: dict[str, object] = {}
        if request.method == "GET" and request.user.has_perm("jobqueue.view_job"):
            using, new = load().database, may_redrive(request)
            # One more than is shown says whether there are more.
            rows, are_older = newest_rows(using, DeadFilter(), GROUPED_MAX)
            found = groups_of(rows, using, most=GROUPS_SHOWN + 1)
            own = {
                "groups": failure_table(found[:GROUPS_SHOWN], read_now(using), request, redrives=new),
                "groups_left": " ".join(_left_out(are_older=are_older, more=len(found) > GROUPS_SHOWN)),
                "may_redrive": new,
            }
        return super().changelist_view(request, own | (extra_context or {}))

    @admin.display(description=_("state"))
    def state(self, run: ShownRedrive) -> str:
        if run.alone and run.due_at is not None:
            if run.changed:
                return badge("running", gettext("runs alone"))
            return badge("ready", gettext("waits to run alone"))
        return badge(_BADGES.get(run.phase, "done"), str(run.get_phase_display()))

    @admin.display(description=_("retried jobs"))
    def progress(self, run: ShownRedrive) -> str:
        """Such as "20 / 100"."""
        return f"{run.changed} / {redriven_of(run).wanted}"

    @admin.display(description=_("filter"))
    def chosen(self, run: ShownRedrive) -> str:
        """What was given, such as "queue=mail"."""
        if run.alone:
            (job_id,) = run.filters["job_ids"]
            return format_html("{} {}, {}", gettext("job"), job_link(job_id), gettext("alone"))
        parts = [f"{name}={value}" for name, value in run.filters.items()]
        return plain(", ".join(parts), 200) if parts else gettext("all dead letters")

    @admin.display(description=_("canary, rate"))
    def pace(self, run: ShownRedrive) -> str:
        parts = [str(run.canary) if run.canary else NOTHING, f"{run.per_second:g}/s" if run.per_second else NOTHING]
        return ", ".join(parts)


def _left_out(*, are_older: bool, more: bool) -> Iterator[str]:
    """What the groups do not tell, as sentences."""
    if are_older:
        yield gettext("Only the newest %(n)s dead letters are counted.") % {"n": number_format(GROUPED_MAX)}
    if more:
        yield gettext("Only the %(n)d largest groups are shown.") % {"n": GROUPS_SHOWN}
