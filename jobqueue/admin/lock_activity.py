"""One page about locks: statistics, the present state on the server, and earlier findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import translation
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.lock_lists import lists_of
from jobqueue.admin.page.formatting import NOTHING, StrOrPromise, badge, block, moment, plain, relative, span
from jobqueue.admin.page.readonly import ReadOnlyAdmin
from jobqueue.admin.page.tables import Table, table_of
from jobqueue.conf import load
from jobqueue.db.diagnostics import LockWait
from jobqueue.lockstats import report
from jobqueue.lockstats.recorder import OTHER
from jobqueue.lockstats.report import LockSummary, ServerLocks, blocker, finding_lines
from jobqueue.models import LockFinding, LockStat

KEYS_SHOWN = 25
ROWS_SHOWN = 20
RANGES: dict[str, tuple[int, StrOrPromise]] = {
    "15m": (900, _("15 minutes")),
    "1h": (3600, _("1 hour")),
    "24h": (86400, _("24 hours")),
}
KINDS: dict[str, StrOrPromise] = {
    "mutex": _("mutex"),
    "lease lock": _("lease lock"),
    "named lock": _("named lock"),
    "redis lock": _("redis lock"),
}
COUNTER_NAMES = (
    _("acquired"),
    _("had to wait"),
    _("not acquired"),
    _("failure rate"),
    _("wait, mean and longest"),
    _("held, mean and longest"),
    _("expired while held"),
)


@dataclass(frozen=True, slots=True)
class Section:
    """One table of the page with its title."""

    title: str
    head: tuple[StrOrPromise, ...]
    rows: list[tuple[object, ...]]
    note: str = ""  # the text below the table
    empty: str = ""  # the text instead of a table without rows

    @property
    def table(self) -> Table:
        """Its rows, each named by its first cell."""
        return table_of(self.head, self.rows)


@admin.register(LockStat)
class LockActivityAdmin(ReadOnlyAdmin):
    """The page. Only users with jobqueue.view_lockfinding see statements and deadlock reports."""

    list_display_links = None

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The page with the statistics of the chosen range."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        chosen = request.GET.get("range", "1h")
        chosen = chosen if chosen in RANGES else "1h"
        using = load().database
        sections = [*_statistics(RANGES[chosen][0], using)]
        problems: tuple[str, ...] = ()
        if request.user.has_perm("jobqueue.view_lockfinding"):
            server = report.read_server(using=using)
            problems = tuple(translation.gettext(problem) for problem in server.problems)
            sections += [*_server(server), *_found(using)]
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Lock activity"),
            "opts": self.opts,
            "sections": sections,
            "lists": lists_of(request, "lockstat"),
            "problems": [plain(problem) for problem in problems],
            "ranges": [(key, title, key == chosen) for key, (_seconds, title) in RANGES.items()],
            "off": load().lock_metrics_seconds is None,
            "media": self.media,
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/jobqueue/lock_activity.html", context)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Only the page about all locks exists; there is no page of one row."""
        return obj is None and bool(super().has_view_permission(request))


def _statistics(seconds: int, using: str) -> Iterator[Section]:
    kinds = report.read_kinds(seconds=seconds, using=using)
    keys = report.read_keys(seconds=seconds, limit=KEYS_SHOWN, using=using)
    held: Any = report.read_held(limit=ROWS_SHOWN, using=using)
    nothing = gettext("No lock was requested in this period.")
    rows = [(KINDS.get(one.kind, plain(one.kind)), *_cells(one)) for one in kinds]
    yield Section(gettext("Kinds of locks"), (_("kind of lock"), *COUNTER_NAMES), rows, empty=nothing)
    yield Section(
        gettext("Most contended keys"),
        (_("lock key"), _("kind of lock"), *COUNTER_NAMES),
        [(_key(one), KINDS.get(one.kind, plain(one.kind)), *_cells(one)) for one in keys],
        note=gettext("Keys that callers had to wait for come first. The statistics are up to ten seconds old."),
        empty=nothing,
    )
    yield _redone(seconds, using)
    yield Section(
        gettext("Deadlocks by hour of the day"),
        (_("hour in UTC"), _("deadlocks")),
        [(f"{one.hour:02}:00", one.deadlocks) for one in report.read_deadlock_hours(seconds=seconds, using=using)],
        empty=gettext("No transaction met a deadlock in this period."),
    )
    times = [(moment(row.acquired_at, row.now), moment(row.expires_at, row.now)) for row in held]
    yield Section(
        gettext("Lease locks held now"),
        (_("lock key"), _("owner"), _("fence"), _("acquired at"), _("expires at")),
        [(plain(row.lock_key), plain(row.owner), row.fence, *at) for row, at in zip(held, times, strict=True)],
        empty=gettext("None."),
    )


def _redone(seconds: int, using: str) -> Section:
    rows: list[tuple[object, ...]] = [
        (
            one.verb,
            one.error,
            one.redone,
            badge("failed", str(one.given_up)) if one.given_up else 0,
            relative(one.last_seen_at, one.now),
        )
        for one in report.read_redone(seconds=seconds, using=using)
    ]
    return Section(
        gettext("Redone transactions"),
        (_("verb"), _("error"), _("redone"), _("given up"), _("last seen")),
        rows,
        note=gettext(
            "Transactions of all processes that the database refused. Redone ones ran again, and nothing was lost. "
            "Ones that were given up raised the error to their caller; workers try them again later."
        ),
        empty=gettext("No transaction was redone in this period."),
    )


def _key(one: LockSummary) -> str:
    return gettext("(all other keys)") if one.key == OTHER else plain(one.key)


def _cells(one: LockSummary) -> Iterable[object]:
    counters = one.counters
    yield counters.acquired
    yield counters.contended
    yield badge("failed", str(counters.failed)) if counters.failed else 0
    yield f"{one.failure_rate:.1%}"
    yield f"{span(one.wait_seconds)} / {span(counters.wait_us_max / 1e6)}"
    yield f"{span(one.held_seconds)} / {span(counters.held_us_max / 1e6)}" if counters.released else NOTHING
    yield badge("expired", str(counters.reentries)) if counters.reentries else 0


def _server(server: ServerLocks) -> Iterator[Section]:
    if server.waits is not None:
        titles = (_("waiting session"), _("time waited"), _("locked record"), _("its statement"))
        yield Section(
            gettext("Sessions waiting for a lock now"),
            (*titles, _("held by session"), _("its statement"), _("transaction open for")),
            [
                (wait.waiting, span(wait.seconds), plain(f"{wait.locked} ({wait.mode})"),
                 plain(wait.waiting_statement or NOTHING), wait.blocking, plain(blocker(wait)), _age(wait))
                for wait in server.waits
            ],
            empty=gettext("None."),
        )  # fmt: skip
    if server.slow is not None:
        yield Section(
            gettext("Statements by lock wait time"),
            (_("statement"), _("runs"), _("lock wait time"), _("total time")),
            [(plain(one.statement), one.runs, span(one.lock_seconds), span(one.total_seconds)) for one in server.slow],
            note=gettext("Counted by the server since it started or was last reset."),
            empty=gettext("None."),
        )
    if server.deadlocks is not None:
        rows: list[tuple[object, ...]] = [(gettext("deadlocks since the server began to count"), server.deadlocks)]
        yield Section(gettext("Deadlocks"), (_("counter"), _("total")), rows)


def _age(wait: LockWait) -> str:
    return NOTHING if wait.blocking_seconds is None else span(wait.blocking_seconds)


def _found(using: str) -> Iterator[Section]:
    titles = {
        LockFinding.Kind.DEADLOCK: gettext("Deadlock reports"),
        LockFinding.Kind.WAIT: gettext("Observed lock waits"),
        LockFinding.Kind.SLOW: gettext("Observed slow locking statements"),
        LockFinding.Kind.TTL: gettext("Locks that may expire while their job runs"),
    }
    for kind, title in titles.items():
        rows = report.read_findings(kind, limit=ROWS_SHOWN, using=using)
        cells = [(relative(row.last_seen_at, row.now), _text(row)) for row in rows]  # type: ignore[attr-defined]
        yield Section(title, (_("last seen"), _("details")), list(cells), empty=gettext("None."))


def _text(row: LockFinding) -> str:
    lines = finding_lines(row)
    return block("\n".join(lines)) if len(lines) > 1 else plain(lines[0])
