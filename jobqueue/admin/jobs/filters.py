"""The filters of the list of jobs: what an address chooses, and the condition of each of them.

There is none on the number of attempts: no index has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any

from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q
from django.http import HttpRequest

from jobqueue.admin.jobs import ages, failures, searching
from jobqueue.admin.page.causes import CAUSES
from jobqueue.conf import load
from jobqueue.failures import FailureCause
from jobqueue.models import Job
from jobqueue.models.states import STATES, condition_of
from jobqueue.tasks import registry

SEARCH = "q"
#: the parameters, in the order in which the page shows them; of `state` it has tabs
NAMES = ("state", "queue", "task", "tag", "error", "fingerprint", "cause", "worker", "age")
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
    """What the address of a request chooses, read once for each request; raises as matching()."""
    found: Selection | None = getattr(request, "jobqueue_selection", None)
    if found is None:
        found = _selection(chosen(request), load().database, lambda text: messages.warning(request, text))
        setattr(request, "jobqueue_selection", found)  # noqa: B010
    return found


def _selection(wanted: Mapping[str, str], using: str, warn: Callable[[str], None]) -> Selection:
    conditions = {name: _CONDITIONS[name](wanted[name], using) for name in NAMES if name in wanted}
    ids = None
    if text := wanted.get(SEARCH):
        found = searching.search(text, wanted.get("queue"), using=using, warn=warn)
        ids = found.ids
        conditions[SEARCH] = Q(pk__in=ids) if ids is not None else Q(task__in=found.tasks)
    return Selection(dict(wanted), conditions, ids)


def _text(column: str, **more: Any) -> Callable[[str, str], Q]:
    # No name contains NUL, and PostgreSQL's driver raises an error for it.
    return lambda value, using: NOTHING if "\x00" in value else Q(**{column: value}, **more)


def _known(values: Mapping[str, object]) -> Callable[[str], None]:
    def check(value: str) -> None:
        # An unknown value must not mean "all": the user may apply an action to the listed rows next.
        if value not in values:
            raise IncorrectLookupParameters

    return check


def _state(value: str, using: str) -> Q:
    _known(STATES)(value)
    return condition_of(value)


def _cause(value: str, using: str) -> Q:
    """Why FAILED jobs failed; jobs that expired are CANCELED."""
    _known(CAUSES)(value)
    return Q(status=Job.Status.CANCELED if value == FailureCause.EXPIRED else Job.Status.FAILED, cause=value)


def _task(value: str, using: str) -> Q:
    """A task by its name, or by its short name if this process knows the task."""
    names = searching.tasks_called(value, registry.names()[0])
    return NOTHING if "\x00" in value else Q(task__in=names or [value])


def _tag(value: str, using: str) -> Q:
    return NOTHING if "\x00" in value else Q(pk__in=searching.tagged(value, using).values("job_id"))


def _fingerprint(value: str, using: str) -> Q:
    known = len(value) == 16 and value.isascii() and value.isalnum()
    return Q(status=Job.Status.FAILED, fingerprint=value) if known else NOTHING


def _error(value: str, using: str) -> Q:
    """A fingerprint, or the class of an error, which no column of jobs has: its newest failures give fingerprints."""
    found = failures.fingerprints_of(value, using=using)
    return Q(status=Job.Status.FAILED, fingerprint__in=found) if found else _fingerprint(value, using)


def _age(value: str, using: str) -> Q:
    _known(ages.AGES)(value)
    first = ages.first_id(value, using=using)
    return Q(pk__gte=first) if first else NOTHING


_CONDITIONS: dict[str, Callable[[str, str], Q]] = {
    "state": _state,
    "queue": _text("queue"),
    "task": _task,
    "tag": _tag,
    "error": _error,
    "fingerprint": _fingerprint,
    "cause": _cause,
    "worker": _text("locked_by", status=Job.Status.PROCESSING),
    "age": _age,
}
