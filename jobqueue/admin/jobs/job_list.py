"""The list of jobs: the rows of a page, the tabs and the filters above them, and how far it has looked."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.translation import gettext

from jobqueue.admin.jobs.controls import Control, controls
from jobqueue.admin.jobs.filters import SEARCH, Selection, selection_of
from jobqueue.admin.jobs.finding import Found, find
from jobqueue.admin.jobs.states import state_of
from jobqueue.admin.jobs.tabs import Tab, tabs
from jobqueue.admin.page.keyset import Page
from jobqueue.admin.page.verb_admin import VerbList
from jobqueue.conf import load
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import StatementTimeout
from jobqueue.maintenance.worker_rows import is_any_alive

#: how long each of the statements that find the jobs of a page may take
SECONDS = 3.0


class JobList(VerbList):
    """The list of jobs; says above it if jobs wait while no worker runs."""

    def read_page(self, request: HttpRequest) -> Page:
        wanted, using = selection_of(request), load().database
        keyset = self.keyset(request)
        cursor = None if self.cursor is None else keyset.read(self.cursor)
        self.page_note, self.result_count = "", 0
        try:
            with time_limit(SECONDS, using=using):
                found = find(wanted, cursor, self.list_per_page, using)
                # By their keys alone: no plan can take a condition for a better way to these rows.
                shown = self.shown(self.root_queryset.filter(pk__in=found.ids))
                rows: list[Any] = list(shown[: self.list_per_page])
        except StatementTimeout:
            text = gettext("Reading took longer than %(seconds)s s and was stopped. Choose a state, queue or age.")
            self.page_note = text % {"seconds": f"{SECONDS:g}"}
            return Page([])
        self.result_count, self.page_note = found.count, _note(found, first=cursor is None)
        # Counted were those of the jobs that were looked at.
        self.is_at_least = bool(found.searched)
        rows.sort(key=lambda job: -job.pk)
        before = "" if found.before is None else keyset.sign([found.before], back=True)
        behind = "" if found.behind is None else keyset.sign([found.behind], back=False)
        return Page(rows, before, behind)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        jobs: Any = self.result_list
        if request.method != "GET":
            return
        settings = load()
        wanted = selection_of(request)
        self.tabs, self.controls = self._tabs(wanted), self._controls(wanted)
        self.is_narrowed = bool(wanted.chosen.keys() - {"state"})
        if not any(state_of(job) == "ready" and not job.gate for job in jobs):
            return
        if not is_any_alive(settings.worker_silent_seconds, using=settings.database):
            text = gettext("No worker is running, so no job starts. Start one: %(command)s")
            messages.warning(request, text % {"command": "python manage.py runworker"})

    def _tabs(self, wanted: Selection) -> list[tuple[Tab, str, bool]]:
        """(tab, address, whether it is chosen) of each."""
        own = wanted.chosen.get("state", "")
        return [
            (tab, self.get_query_string({"state": tab.state or None}), tab.state == own)
            for tab in tabs(wanted, load().database)
        ]

    def _controls(self, wanted: Selection) -> list[Control]:
        return controls(wanted.chosen, load().database)

    @property
    def search(self) -> str:
        """The parameter of the search."""
        return SEARCH


def _note(found: Found, *, first: bool) -> str:
    if not found.searched:
        return ""
    number = {"n": str(number_format(found.searched, force_grouping=True))}
    if first:
        looked = gettext("Looked at the newest %(n)s jobs; “Older” looks at more.") % number
    else:
        looked = gettext("Looked at up to %(n)s jobs from here on; “Older” and “Newer” look at more.") % number
    return looked
