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
        choices = _CHOICES[name](using) if name in _CHOICES else []
        if name not in WRITTEN and value and value not in (known for known, _label in choices):
            choices.insert(0, (value, plain(value, LABEL_CHARS)))
        found.append(Control(name, TITLES[name], value, choices, name in WRITTEN))
    return found


def _named(names: Iterable[str]) -> Choices:
    # Values with secrets are no choices: the list would show them.
    return [(name, plain(name, LABEL_CHARS)) for name in names if name and mask_text(name) == name]


def _queues(using: str) -> Choices:
    return _named(queue_names(using=using, limit=CHOICES_MAX))


def _tasks(using: str) -> Choices:
    """Those of this process, and those that have ended jobs."""
    rows = JobStatTotal.objects.using(using).order_by("queue", "task").values_list("task", flat=True)
    return _named(sorted({*registry.names()[0], *rows[:TOTALS_READ]}))


def _tags(using: str) -> Choices:
    table, column = map(connections[using].ops.quote_name, (JobTag._meta.db_table, "tag"))
    with connections[using].cursor() as cursor:
        cursor.execute(vendor(using).distinct_sql(table, column, "ix_tag"), [CHOICES_MAX])
        return _named(str(name) for (name,) in cursor.fetchall())


def _workers(using: str) -> Choices:
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True).order_by("name")
    names = list(rows.values_list("name", flat=True)[:CHOICES_MAX])
    short = [short_worker(name) for name in names]
    # The short name, unless two workers have the same.
    return [(name, plain(one if short.count(one) == 1 else name)) for name, one in zip(names, short, strict=True)]


_CHOICES: dict[str, Callable[[str], Choices]] = {
    "queue": _queues,
    "task": _tasks,
    "tag": _tags,
    "error": lambda using: _named(error_classes(using=using)[:CHOICES_MAX]),
    "cause": lambda using: list(CAUSES.items()),
    "worker": _workers,
    "age": lambda using: [(age, label) for age, (_span, label) in AGES.items()],
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
