"""The filters of the list of jobs: what an address chooses, the condition of each, and the fields with their choices.

There is none on the number of attempts: no index has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, reduce
from operator import and_
from typing import NamedTuple

from django.contrib import messages
from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import connections
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs import search
from jobqueue.admin.page.formatting import CAUSES, StrOrPromise, plain, short_worker
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.expressions import Slot
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.statements import LooseScan
from jobqueue.failures import FailureCause
from jobqueue.masking import mask_text
from jobqueue.models import Job, JobAttempt, JobTag, Worker
from jobqueue.models.states import STATES, condition_of
from jobqueue.runs import job_filter
from jobqueue.stats.history import counted_kinds
from jobqueue.tasks import registry
from jobqueue.transitions.claiming.candidates import queue_names

SEARCH = "q"
NOTHING = Q(pk__in=())


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs an address chooses: the value of each filter, and the condition on a job that it means."""

    chosen: dict[str, str]
    conditions: dict[str, Q] = field(default_factory=dict)
    # Jobs that a search has found by an index.
    ids: list[int] | None = None

    @property
    def status(self) -> int | None:
        """The status of all jobs of the selection, if they have the same one."""
        if state := self.chosen.get("state"):
            return STATES[state].status
        if self.chosen.get("cause") == FailureCause.EXPIRED:
            return Job.Status.CANCELED
        return Job.Status.FAILED if {"cause", "error", "fingerprint"} & self.chosen.keys() else None

    def rest(self, *served: str) -> Q:
        """The conditions besides those of the `served` filters; an empty Q if there is none."""
        return reduce(and_, (found for name, found in self.conditions.items() if name not in served), Q())


def chosen(request: HttpRequest) -> dict[str, str]:
    """The filters of an address and their values, as they came, and the text of the search as "q".

    An empty text chooses nothing, except as a state.
    """
    given = request.GET
    found = {name: given[name] for name in NAMES if name in given and (given[name] or name == "state")}
    text = given.get(SEARCH, "").strip()
    # Django refuses such a search in words.
    return found | ({SEARCH: text} if text and "\x00" not in text else {})


def selection_of(request: HttpRequest) -> Selection:
    """What the address of a request chooses, read once for each request.

    Raises IncorrectLookupParameters for a value that no choice has.
    """
    found: Selection | None = getattr(request, "jobqueue_selection", None)
    if found is None:
        if "arg" in (wanted := chosen(request)):
            _check_argument(request)
        found = _selection(wanted, load().database, lambda text: messages.warning(request, text))
        setattr(request, "jobqueue_selection", found)  # noqa: B010
    return found


def _check_argument(request: HttpRequest) -> None:
    """Refuse a search in what this user may not see, and a choice of all jobs that it would find."""
    if not request.user.has_perm("jobqueue.view_payload"):
        raise PermissionDenied
    if request.POST.get("select_across", "0") != "0":
        raise SuspiciousOperation("a choice that no page offers")


def _selection(wanted: Mapping[str, str], using: str, warn: Callable[[str], None]) -> Selection:
    conditions = {name: one.condition(wanted[name], using) for name, one in LISTED.items() if name in wanted}
    ids = None
    if text := wanted.get(SEARCH):
        found = search.search(text, wanted.get("queue"), using=using, warn=warn)
        ids = found.ids
        conditions[SEARCH] = Q(pk__in=ids) if ids is not None else Q(task__in=found.tasks)
    return Selection(dict(wanted), conditions, ids)


def _check(value: str, known: Mapping[str, object]) -> None:
    # An unknown value must not mean "all": the user may apply an action to the listed rows next.
    if value not in known:
        raise IncorrectLookupParameters


def _state(value: str, using: str) -> Q:
    _check(value, STATES)
    return condition_of(value)


def _cause(value: str, using: str) -> Q:
    _check(value, CAUSES)
    return job_filter.FILTERS["cause"].condition(value)


def _task(value: str, using: str) -> Q:
    """A task by its name, or by its short name if this process knows the task."""
    names = search.tasks_called(value, registry.names()[0])
    return NOTHING if "\x00" in value else Q(task__in=names or [value])


def _fingerprint(value: str, using: str) -> Q:
    known = len(value) == 16 and value.isascii() and value.isalnum()
    return Q(status=Job.Status.FAILED, fingerprint=value) if known else NOTHING


def _error(value: str, using: str) -> Q:
    """A fingerprint, or the class of an error, which no column of jobs has: its newest failures give fingerprints."""
    found = fingerprints_of(value, using=using)
    return Q(status=Job.Status.FAILED, fingerprint__in=found) if found else _fingerprint(value, using)


def _age(value: str, using: str) -> Q:
    _check(value, AGES)
    first = first_id(value, using=using)
    return Q(pk__gte=first) if first else NOTHING


AGES: dict[str, tuple[timedelta, StrOrPromise]] = {
    "15m": (timedelta(minutes=15), _("the last 15 minutes")),
    "1h": (timedelta(hours=1), _("the last hour")),
    "24h": (timedelta(hours=24), _("the last 24 hours")),
    "7d": (timedelta(days=7), _("the last 7 days")),
}
#: ids that one statement looks at: among 10 million ids, 6 statements find the first job of an age
PROBES = 15


def first_id(age: str, *, using: str) -> int:
    """The lowest id of the jobs that were added in this time, by the order of ids; 0 if none was.

    A search in 16 parts at a time: PROBES index seeks in a statement, and 1 statement for each 4 bits of the range of
    ids. It assumes that ids grow with time, as they do except for jobs of long transactions.
    """
    since = read_now(using) - AGES[age][0]
    last = Job.objects.using(using).order_by("-pk").values_list("pk", "created_at").first()
    if last is None or last[1] < since:
        return 0
    first = Job.objects.using(using).order_by("pk").values_list("pk", "created_at").first()
    if first is None or first[1] >= since:
        return int(first[0]) if first else 0
    return _between(int(first[0]), int(last[0]), since, using)


def _between(old: int, young: int, since: datetime, using: str) -> int:
    """The lowest id whose job is young enough, above the id `old`, whose job is not, up to `young`, whose job is."""
    found = young
    while young - old > 1:
        step = max(1, (young - old) // (PROBES + 1))
        places = [place for place in (old + step * n for n in range(1, PROBES + 1)) if place < young]
        # The first job at or above each place; several places may have the same one.
        jobs = sorted(_at_or_above(using).rows_of_each([{"place": place} for place in places]))
        for place in places:
            job_id, created_at = next(job for job in jobs if job[0] >= place)
            if created_at >= since:
                young, found = place, int(job_id)
                break
            old = max(old, int(job_id))
    return found


@cache
def _at_or_above(using: str) -> Prepared:
    rows = Job.objects.using(using).filter(pk__gte=Slot("place", Job._meta.get_field("id"))).order_by("pk")
    return prepare_rows(rows.values_list("pk", "created_at")[:1])


#: the newest failed attempts that are looked at
ATTEMPTS_MAX = 1000


def error_classes(*, using: str) -> list[str]:
    """The classes of the newest ATTEMPTS_MAX failed attempts, the most frequent first."""
    counts = Counter(name for name, _mark in _newest_attempts(using) if name)
    return sorted(counts, key=lambda name: (-counts[name], name))


def fingerprints_of(error_class: str, *, using: str) -> list[str]:
    """The fingerprints of those attempts whose error has this class, with its module or without."""
    return sorted(
        {mark for name, mark in _newest_attempts(using) if mark and error_class in (name, name.rpartition(".")[2])}
    )


def _newest_attempts(using: str) -> list[tuple[str, str | None]]:
    rows = JobAttempt.objects.using(using).order_by("-pk").values_list("error_class", "fingerprint")
    return list(rows[:ATTEMPTS_MAX])


#: choices of a field, and the rows of statistics in which tasks are looked for
CHOICES_MAX, TOTALS_READ = 200, 2000
LABEL_CHARS = 60
Choices = list[tuple[str, "StrOrPromise"]]
#: the first choices of a field, and whether there are more
Offered = tuple[Choices, bool]


class Control(NamedTuple):
    """A filter as a field: a list of choices, or, if it is `written`, a text with suggestions."""

    name: str
    title: StrOrPromise
    value: str
    choices: Choices
    written: bool


def controls(chosen: dict[str, str], using: str) -> list[Control]:
    """The fields, in order; a value that is not among the choices of its field is shown as chosen."""
    found = []
    for name, one in LISTED.items():
        value = chosen.get(name, "")
        if name == "state" or (one.choices is None and not value):
            continue
        choices, more = one.choices(using) if one.choices else ([], False)
        # Where a list would leave some out, their names are written, too.
        is_written = more or one.is_written
        if not is_written and value and value not in (known for known, _label in choices):
            choices.insert(0, (value, plain(value, LABEL_CHARS)))
        found.append(Control(name, one.title, value, choices, is_written))
    return found


def _named(names: Sequence[str]) -> Offered:
    return _plain(names[:CHOICES_MAX]), len(names) > CHOICES_MAX


def _plain(names: Iterable[str]) -> Choices:
    # Values with secrets are no choices: the list would show them.
    return [(name, plain(name, LABEL_CHARS)) for name in names if name and mask_text(name) == name]


def _tasks(using: str) -> Offered:
    """Those of this process, and those that have ended jobs."""
    return _plain(sorted({*registry.names()[0], *(kind.task for kind in counted_kinds(using, TOTALS_READ))})), False


def _tags(using: str) -> Offered:
    table, column = map(connections[using].ops.quote_name, (JobTag._meta.db_table, "tag"))
    with connections[using].cursor() as cursor:
        cursor.execute(vendor(using).loose_scan_sql(LooseScan(table, [column], "ix_tag")), [CHOICES_MAX + 1])
        return _named([str(name) for (name,) in cursor.fetchall()])


def _workers(using: str) -> Offered:
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True).order_by("name")
    found = list(rows.values_list("name", flat=True)[: CHOICES_MAX + 1])
    names = found[:CHOICES_MAX]
    short = [short_worker(name) for name in names]
    # The short name, unless two workers have the same.
    choices: Choices = [
        (name, plain(one if short.count(one) == 1 else name)) for name, one in zip(names, short, strict=True)
    ]
    return choices, len(found) > CHOICES_MAX


class Filter(NamedTuple):
    """A filter: the condition of a value, and what can be chosen; None: it is shown only while it has a value.

    `is_written`: a text field instead of a list, because there are too many names for a list.
    """

    title: StrOrPromise
    condition: Callable[[str, str], Q]
    choices: Callable[[str], Offered] | None
    is_written: bool = False


def _of(
    name: str,
    choices: Callable[[str], Offered] | None,
    condition: Callable[[str, str], Q] | None = None,
    *,
    is_written: bool = False,
) -> Filter:
    """A filter of runs/job_filter.py, with the condition that it has there or another one."""
    own = job_filter.FILTERS[name]

    def of_bulk_verbs(value: str, using: str) -> Q:
        # No name contains NUL, and PostgreSQL's driver raises an error for it.
        return NOTHING if "\x00" in value else own.condition(value)

    return Filter(own.title, condition or of_bulk_verbs, choices, is_written)


#: by parameter, in the order in which the page shows them; of `state` it has tabs
LISTED = {
    "state": _of("state", None, _state),
    "queue": _of("queue", lambda using: _named(queue_names(using=using, limit=CHOICES_MAX + 1))),
    "task": _of("task", _tasks, _task, is_written=True),
    "tag": _of("tag", _tags, is_written=True),
    "error": Filter(_("error"), _error, lambda using: _named(error_classes(using=using))),
    "fingerprint": _of("fingerprint", None, _fingerprint),
    "cause": _of("cause", lambda using: (list(CAUSES.items()), False), _cause),
    "worker": _of("worker", _workers),
    # No condition of SQL: finding.py looks through the jobs.
    "arg": Filter(_("argument"), lambda value, using: Q(), lambda using: ([], True)),
    "age": Filter(_("added in"), _age, lambda using: ([(age, word) for age, (_span, word) in AGES.items()], False)),
}
# Others are texts without suggestions; only the page of a bulk verb has job_ids and from_id.
LISTED |= {
    name: _of(name, lambda using: ([], False), is_written=True)
    for name in job_filter.FILTERS
    if name not in {*LISTED, "job_ids", "from_id"}
}
NAMES = tuple(LISTED)


class JobFilter(SimpleListFilter):
    """A filter of the list as Django wants it; the page shows its control instead."""

    def has_output(self) -> bool:
        # A filter without output is not applied: the list would show all jobs.
        return True

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Model]) -> Sequence[tuple[str, str]]:
        return []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        condition = selection_of(request).conditions.get(str(self.parameter_name))
        return queryset if condition is None else queryset.filter(condition)


FILTERS = tuple(
    type(f"{name.capitalize()}Filter", (JobFilter,), {"parameter_name": name, "title": one.title})
    for name, one in LISTED.items()
)
