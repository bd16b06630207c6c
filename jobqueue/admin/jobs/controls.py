"""The filters of the list of jobs as fields of a form; their choices come from small tables and from index seeks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from django.contrib.admin import SimpleListFilter
from django.db import connections
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.ages import AGES
from jobqueue.admin.jobs.failures import error_classes
from jobqueue.admin.jobs.filters import NAMES, selection_of
from jobqueue.admin.page.causes import CAUSES
from jobqueue.admin.page.formatting import plain, short_worker
from jobqueue.db import vendor
from jobqueue.masking import mask_text
from jobqueue.models import JobStatTotal, JobTag, Worker
from jobqueue.tasks import registry
from jobqueue.transitions.claiming.candidates import queue_names

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin
    from django_stubs_ext import StrOrPromise

#: choices of a field, and the rows of statistics in which tasks are looked for
CHOICES_MAX, TOTALS_READ = 200, 2000
LABEL_CHARS = 60
#: filters with a text field instead of a list: there are too many tasks and tags for a list
WRITTEN = ("task", "tag")
TITLES: dict[str, StrOrPromise] = {
    "state": _("state"),
    "queue": _("queue"),
    "task": _("task"),
    "tag": _("tag"),
    "error": _("error"),
    "fingerprint": _("fingerprint of the failure"),
    "cause": _("cause of failure"),
    "worker": _("worker"),
    "age": _("added in"),
}
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
    for name in NAMES:
        if name == "state" or (name == "fingerprint" and name not in chosen):
            continue
        value = chosen.get(name, "")
        choices, more = _CHOICES[name](using) if name in _CHOICES else ([], False)
        # Where a list would leave some out, their names are written, too.
        is_written = more or name in WRITTEN
        if not is_written and value and value not in (known for known, _label in choices):
            choices.insert(0, (value, plain(value, LABEL_CHARS)))
        found.append(Control(name, TITLES[name], value, choices, is_written))
    return found


def _named(names: Sequence[str]) -> Offered:
    return _plain(names[:CHOICES_MAX]), len(names) > CHOICES_MAX


def _plain(names: Iterable[str]) -> Choices:
    # Values with secrets are no choices: the list would show them.
    return [(name, plain(name, LABEL_CHARS)) for name in names if name and mask_text(name) == name]


def _queues(using: str) -> Offered:
    return _named(queue_names(using=using, limit=CHOICES_MAX + 1))


def _tasks(using: str) -> Offered:
    """Those of this process, and those that have ended jobs."""
    rows = JobStatTotal.objects.using(using).order_by("queue", "task").values_list("task", flat=True)
    return _plain(sorted({*registry.names()[0], *rows[:TOTALS_READ]})), False


def _tags(using: str) -> Offered:
    table, column = map(connections[using].ops.quote_name, (JobTag._meta.db_table, "tag"))
    with connections[using].cursor() as cursor:
        cursor.execute(vendor(using).distinct_sql(table, column, "ix_tag"), [CHOICES_MAX + 1])
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


_CHOICES: dict[str, Callable[[str], Offered]] = {
    "queue": _queues,
    "task": _tasks,
    "tag": _tags,
    "error": lambda using: _named(error_classes(using=using)),
    "cause": lambda using: (list(CAUSES.items()), False),
    "worker": _workers,
    "age": lambda using: ([(age, label) for age, (_span, label) in AGES.items()], False),
}


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


def _filter(name: str) -> type[JobFilter]:
    return type(f"{name.capitalize()}Filter", (JobFilter,), {"parameter_name": name, "title": TITLES[name]})


FILTERS = tuple(map(_filter, NAMES))
