"""The filters of the list of jobs as those of a bulk verb, which mean the same jobs whenever a worker reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from django.utils.translation import gettext

from jobqueue.admin.jobs import filters, search
from jobqueue.admin.page.formatting import number, plain
from jobqueue.runs.job_filter import FILTERS, FINGERPRINTS_MAX, NAMED_MAX, is_fingerprint
from jobqueue.tasks import registry

#: filters that stand for others, by the moment at which they are read
RELATIVE = ("error", "age", "arg", "q")
VALUE_CHARS, NAMES_TOLD = 80, 5


class Exact(NamedTuple):
    """Filters of a bulk verb; or none, and a sentence that says why, and what to do."""

    filters: dict[str, str]
    problem: str = ""


class _Refused(Exception):
    """Raised with the message for the user."""


def exact(wanted: Mapping[str, str], using: str) -> Exact:
    """What the filters of an address mean now.

    An error becomes its fingerprints, an age the first job of that time, and a search a tag, a task, or the jobs that
    it finds.
    """
    found = {name: value for name, value in wanted.items() if name in FILTERS}
    if "arg" in wanted:
        return Exact({}, gettext("Only jobs of the list can be chosen by an argument. Give such jobs a tag."))
    try:
        if "task" in found:
            found["task"] = _task(found["task"], search.tasks_called(found["task"], registry.names()[0]))
        if "error" in wanted:
            found["fingerprint"] = _fingerprints(wanted["error"], found.get("fingerprint"), using)
        if "age" in wanted:
            found["from_id"] = _first_id(wanted["age"], using)
        if "q" in wanted:
            name, value = _found_by(wanted["q"], wanted.get("queue"), using)
            if found.setdefault(name, value) != value:
                _refuse(gettext("The search and the other filters exclude each other. Choose one of them."))
    except _Refused as refused:
        return Exact({}, str(refused))
    return Exact(found)


def _refuse(sentence: str, **facts: object) -> NoReturn:
    raise _Refused(sentence % {name: plain(value, 500) for name, value in facts.items()})


def _task(given: str, names: list[str]) -> str:
    if len(names) > 1:
        text = gettext("Several tasks are called %(name)s: %(tasks)s. Choose one of them by its whole name.")
        more = ", ..." if len(names) > NAMES_TOLD else ""
        _refuse(text, name=plain(given, VALUE_CHARS), tasks=", ".join(names[:NAMES_TOLD]) + more)
    return names[0] if names else given


def _fingerprints(error: str, given: str | None, using: str) -> str:
    marks = filters.fingerprints_of(error, using=using) or ([error] if is_fingerprint(error) else [])
    facts = {"error": plain(error, VALUE_CHARS)}
    if not marks:
        text = gettext(
            "None of the newest %(n)s failures has the error %(error)s. Choose the fingerprint of the failure instead: "
            "it stands on the page of each job that failed."
        )
        _refuse(text, n=number(filters.ATTEMPTS_MAX), **facts)
    if given is not None:
        marks = [mark for mark in marks if mark == given]
        if not marks:
            _refuse(gettext("The error and the fingerprint exclude each other. Choose one of them."))
    if len(marks) > FINGERPRINTS_MAX:
        text = gettext(
            "The error %(error)s has %(n)s fingerprints, too many for one action. Choose a fingerprint instead: it "
            "stands on the page of each job that failed."
        )
        _refuse(text, n=number(len(marks)), **facts)
    return ",".join(marks)


def _first_id(age: str, using: str) -> str:
    if age not in filters.AGES:
        _refuse(gettext("No age is called %(age)s. Choose one in the list."), age=plain(age, VALUE_CHARS))
    first = filters.first_id(age, using=using)
    if not first:
        _refuse(gettext("No job was added in that time. Choose a longer one."))
    return str(first)


def _found_by(text: str, queue: str | None, using: str) -> tuple[str, str]:
    """The filter that a search stands for: its name and its value."""
    warnings: list[str] = []
    seen = search.search(text, queue, using=using, warn=warnings.append)
    if seen.ids is None:
        return "task", _task(text, seen.tasks)
    if seen.is_tag:
        return "tag", text
    if warnings:
        _refuse("%(warning)s", warning=warnings[0])
    if not seen.ids:
        _refuse(gettext("The search finds no job. Search for an id, a key, a tag or a task, or choose filters."))
    if not seen.is_whole or len(seen.ids) > NAMED_MAX:
        _refuse(
            gettext("The search stopped at %(n)s jobs, and there may be more. Choose a tag, queue or task instead."),
            n=number(search.FOUND_MAX),
        )
    return "job_ids", ",".join(map(str, sorted(seen.ids)))
