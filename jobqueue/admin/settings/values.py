"""The values of JOBQUEUE that are in force, and which of them the settings have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import plain, span
from jobqueue.conf import OutboxSettings, Settings
from jobqueue.conf.alarms import NOTIFY, WORKERS, Recipient
from jobqueue.conf.queues import QueueSettings
from jobqueue.conf.retention import DEFAULT, STATES, Kept
from jobqueue.conf.rules import MAPPING, Rule
from jobqueue.failures.dependencies import DependencySettings
from jobqueue.masking.urls import HIDDEN, hide_place, hide_route, hide_url

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

_PLACES = ("wakeup", "redis_url")
#: the keys of a schedule that are shown; its arguments may be secrets
_OF_SCHEDULE = ("TASK", "CRON", "EVERY", "TIMEZONE", "MISSED", "OVERLAP")


class Value(NamedTuple):
    """One key of a setting with its value."""

    name: str  # may break after each underscore
    lines: tuple[str, ...]  # as the settings would have it
    note: str  # the same for people, such as "7d 0h"
    is_set: bool


class Group(NamedTuple):
    """The keys of one table."""

    title: StrOrPromise
    values: list[Value]


def groups(found: Settings, raw: Mapping[str, Any]) -> Iterator[Group]:
    """All values in force: those that `raw` sets come first, defaults last. Secrets are hidden.

    `found` is what conf.read() made of `raw`.
    """
    own = list(_values(found, raw))
    yield Group(_("Set in JOBQUEUE"), [value for value in own if value.is_set])
    yield from (group for group in _mappings(found) if group.values)
    yield Group("RETENTION", [_kept(state, found.retention) for state in STATES])
    yield Group("OUTBOX", list(_values(found.outbox_settings, raw.get("OUTBOX"))))
    yield Group(_("Defaults"), [value for value in own if not value.is_set])


def _mappings(found: Settings) -> Iterator[Group]:
    """The keys that hold entries by name."""
    alarms, routes = found.alarms, found.outbox_settings.routes
    thresholds = {**alarms.queues, WORKERS: alarms.workers}
    yield Group("QUEUES", [_queue(name, queue) for name, queue in found.queues.items()])
    yield Group("ALARMS", [*_thresholds(thresholds), *_told(alarms.notify)])
    yield Group("SCHEDULES", [_named(name, _schedule(entry)) for name, entry in found.schedules.items()])
    yield Group("DEPENDENCIES", [_dependency(name, one) for name, one in found.dependencies.items()])
    yield Group("CAUSES", [_named(path, [str(cause)]) for path, cause in found.causes.items()])
    yield Group("OUTBOX: ROUTES", [_named(topic, [hide_route(route)]) for topic, route in routes.items()])


def _values(found: Settings | OutboxSettings, raw: object) -> Iterator[Value]:
    """The keys of `found` that hold no mapping."""
    given = raw if isinstance(raw, Mapping) else {}
    for one in fields(found):
        rule: Rule = one.metadata["rule"]
        if rule.allows is not MAPPING.allows:
            key, value = one.name.upper(), getattr(found, one.name)
            # A wrong value is not in force.
            is_set = key in given and rule.problem(key, given[key]) is None
            yield Value(_breaking(key), (_text(one.name, rule, value),), _note(one.name, value), is_set)


def _text(name: str, rule: Rule, value: object) -> str:
    if value is not None and name in _PLACES:
        return plain(repr(hide_place(str(value))))
    if value is not None and rule.secret:
        return HIDDEN
    return plain(repr(int(value) if isinstance(value, float) and value.is_integer() else value))


def _note(name: str, value: object) -> str:
    """What a large number means."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    if name.endswith("_bytes") and value >= 1024:
        return str(filesizeformat(value))
    return _age(value) if name.endswith("_seconds") and value >= 60 else ""


def _age(seconds: float) -> str:
    """A duration without a zero at its end: 7d, not 7d 0h."""
    first, _, rest = span(seconds).partition(" ")
    return first if not rest or rest.startswith("0") else f"{first} {rest}"


def _named(name: str, lines: Iterable[str]) -> Value:
    return Value(_breaking(name), tuple(map(plain, lines)), "", True)


def _breaking(name: str) -> str:
    parts = plain(name).split("_")
    return format_html_join(mark_safe("_<wbr>"), "{}", ((part,) for part in parts))


def _queue(name: str, queue: QueueSettings) -> Value:
    plain_queue = QueueSettings()
    lines = []
    for one in fields(QueueSettings):
        value = getattr(queue, one.name)
        if one.name == "retention":
            lines += [f"RETENTION[{state!r}] = {_kept_text(kept)}" for state, kept in value.items()]
        elif value != getattr(plain_queue, one.name):
            lines.append(f"{one.name.upper()} = {value!r}")
    return _named(name, lines or ["{}"])


def _kept(state: str, given: Mapping[str, Kept]) -> Value:
    return Value(state, (_kept_text(given.get(state, DEFAULT[state])),), "", state in given)


def _kept_text(kept: Kept) -> str:
    parts = [f"AGE {_age(kept.age_seconds)}"] if kept.age_seconds is not None else []
    parts += [f"KEEP {kept.most}"] if kept.most is not None else []
    parts += ["ARCHIVE"] if kept.archive else []
    return ", ".join(parts) or "None"


def _thresholds(entries: Mapping[str, Mapping[str, float]]) -> Iterator[Value]:
    for name, thresholds in entries.items():
        if thresholds:
            yield _named(name, [f"{figure} = {limit:g}" for figure, limit in thresholds.items()])


def _told(notify: Iterable[Recipient]) -> Iterator[Value]:
    if lines := [_recipient(one) for one in notify]:
        yield _named(NOTIFY, lines)


def _recipient(one: Recipient) -> str:
    """Such as "MAIL ops@shop.example"; of a webhook only the host."""
    places = map(hide_url, one.places) if one.kind == "WEBHOOK" else one.places
    return " ".join([one.kind, *places])


def _schedule(entry: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {entry[key]!r}" for key in _OF_SCHEDULE if key in entry]


def _dependency(name: str, found: DependencySettings) -> Value:
    return _named(name, [f"{one.name.upper()} = {getattr(found, one.name):g}" for one in fields(DependencySettings)])
