"""The list of groups: those that have not ended and those that have as tabs, and the counts of each that is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.groups.counts import LIST_MAX, counts_of
from jobqueue.admin.page.readonly import COUNT_CAP, ConditionFilter, NewestFirst, capped
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.models import JobGroup

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

State = JobGroup.State
LIVE = (State.OPEN, State.SEALED)


class GroupStateFilter(ConditionFilter):
    """Groups that have not ended, and those that have."""

    labels = {"live": _("not ended"), "ended": _("ended")}
    conditions = {"live": {"state__in": LIVE}, "ended": {"state": State.ENDED}}


class GroupList(NewestFirst):
    """A list with the counts of each group that is shown."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: Any = list(self.result_list)
        found = counts_of(rows, load().database, LIST_MAX)
        for group in rows:
            group.counts = found[group.pk]
        self.result_list = rows
        self.tabs = self._tabs()

    def _tabs(self) -> list[tuple[StrOrPromise, str, str, bool]]:
        """(word, figure, address, whether it is chosen) of each; only those that have not ended are counted."""
        using, chosen = load().database, self.params.get("state")
        rows = JobGroup.objects.using(using).filter(state__in=LIVE).order_by("state", "pk")
        live = vendor(using).force_index(rows, "ix_group_state").values("pk")[:COUNT_CAP].count()
        figures = {"live": capped(live)}
        words: list[tuple[str | None, StrOrPromise]] = [(None, _("all")), *GroupStateFilter.labels.items()]
        return [
            (word, figures.get(state or "", ""), self.get_query_string({"state": state}), state == chosen)
            for state, word in words
        ]
