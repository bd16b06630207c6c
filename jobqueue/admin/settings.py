"""The page of the settings in force, of the queue's database, and of the checks."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple

import django
from django.conf import settings
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import Error, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

import jobqueue
from jobqueue import conf
from jobqueue.admin.page.formatting import NOTHING, StrOrPromise, badge, plain, span, stacked
from jobqueue.admin.page.navigation import SitePage
from jobqueue.conf import OutboxSettings, Settings
from jobqueue.conf.alarms import NOTIFY, WORKERS, Recipient
from jobqueue.conf.queues import DEFAULT, STATES, Kept, QueueSettings
from jobqueue.conf.rules import MAPPING, Rule
from jobqueue.db import vendor
from jobqueue.db.clock import SKEW_SECONDS, compare_clocks
from jobqueue.doctor import Finding, Level
from jobqueue.doctor.examination import Examination, run_checks
from jobqueue.failures.dependencies import DependencySettings
from jobqueue.masking import HIDDEN, hide_database, hide_place, hide_route, hide_url

if TYPE_CHECKING:
    Facts = list[tuple[StrOrPromise, str]]

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
    yield Group("ALARMS", [*_thresholds(thresholds), *_recipients(alarms.notify)])
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


def _recipients(notify: Iterable[Recipient]) -> Iterator[Value]:
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


#: a difference of clocks that nobody would notice
_EQUAL_SECONDS = 0.05


def versions() -> Iterator[tuple[StrOrPromise, str]]:
    """The facts of this process. No query."""
    release = f"jobqueue {jobqueue.__version__}, Django {django.get_version()}, Python {platform.python_version()}"
    yield _("versions"), release
    yield _("time zone of the pages"), timezone.get_current_timezone_name()


def server_facts(using: str) -> Iterator[tuple[StrOrPromise, str]]:
    """The facts of the database, by five small queries. Raises Error if it does not answer."""
    connection, found = connections[using], vendor(using)
    yield _("database"), stacked(plain(found.describe(connection)), plain(_place(using)))
    yield _("isolation of sessions"), plain(found.isolation(connection))
    skips = "SKIP LOCKED" in found.claim_form
    yield "SKIP LOCKED", gettext("yes") if skips else gettext("no: one worker writes at a time")
    yield _("how workers claim"), plain(found.claim_form)
    yield _("clock of this host"), _clock(using)
    yield _("migrations"), _migrations(using)


def _place(using: str) -> str:
    """Such as "default: shop on db.internal:3306"; no account and no password."""
    entry = connections[using].settings_dict
    host, port = entry.get("HOST") or "", entry.get("PORT") or ""
    name = f"{using}: {hide_database(str(entry['NAME']))}"
    if not host:
        return name
    return gettext("%(name)s on %(host)s") % {"name": name, "host": f"{host}:{port}" if port else host}


def _clock(using: str) -> str:
    ahead = compare_clocks(using).ahead_seconds
    if abs(ahead) < _EQUAL_SECONDS:
        return gettext("as that of the database server")
    text = (
        gettext("%(time)s ahead of the database server")
        if ahead > 0
        else gettext("%(time)s behind the database server")
    )
    told = text % {"time": span(ahead)}
    return badge("expired", told) if abs(ahead) > SKEW_SECONDS else told


def _migrations(using: str) -> str:
    """The newest one, and those that were not run. Files are only listed: a page does not load those of all apps."""
    module, _is_explicit = MigrationLoader.migrations_module("jobqueue")
    if module is None:
        # MIGRATION_MODULES says that there are none.
        return NOTHING
    known = sorted(one.name for one in iter_modules(import_module(module).__path__) if one.name[0] not in "_~")
    applied = {name for app, name in MigrationRecorder(connections[using]).applied_migrations() if app == "jobqueue"}
    missing = [name for name in known if name not in applied]
    if missing:
        return badge("failed", gettext("not run: %(names)s") % {"names": ", ".join(missing)})
    newest = known[-1] if known else NOTHING
    return gettext("all were run, the last one is %(name)s") % {"name": newest}


#: Limits of queues stand in the settings and on the page of queues: who may see those may see these. A run of the
#: checks takes seconds of the database, and names sessions, hosts and files: it is for those who set queues up.
VIEW, CHECK = "jobqueue.view_flowrule", "jobqueue.change_limits"
#: no check begins later than this after the first one, and no SELECT of a check may run for longer than the second time
LIMIT_SECONDS, READ_SECONDS = 10.0, 2.0
#: characters of an error or a finding
TOLD_CHARS = 2000
_LEVELS: Mapping[Level, tuple[str, StrOrPromise]] = {
    Level.ERROR: ("failed", _("error")),
    Level.WARNING: ("expired", _("warning")),
    Level.INFO: ("scheduled", _("information")),
}


def settings_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The page; a POST runs the checks and shows it with what they find. Works also while JOBQUEUE is wrong."""
    may_check = request.user.has_perm(CHECK)
    if request.method == "POST" and not may_check:
        raise PermissionDenied
    raw = getattr(settings, "JOBQUEUE", {})
    found, problems = conf.read(raw)
    known = found.database in settings.DATABASES
    facts, unreachable = _facts(found.database) if known else (list(versions()), "")
    run = None
    if request.method == "POST" and known and not problems:
        # What the command shows, without the servers beside the database.
        run = run_checks(found.database, beside=False, seconds=READ_SECONDS, limit_seconds=LIMIT_SECONDS)
    context = {
        **site.each_context(request),
        "title": PAGE.title,
        "problems": [plain(problem) for problem in problems],
        "facts": facts,
        "unreachable": unreachable,
        "may_check": may_check and known and not problems,
        "limit": round(LIMIT_SECONDS),
        "run": None if run is None else _shown(run),
        "groups": list(groups(found, raw if isinstance(raw, Mapping) else {})),
    }
    return TemplateResponse(request, "admin/jobqueue/settings.html", context)


def _facts(using: str) -> tuple[Facts, str]:
    """The facts, and why there are none of the database."""
    try:
        return [*server_facts(using), *versions()], ""
    except Error as error:
        return list(versions()), _told(f"{type(error).__name__}: {error}")


def _shown(run: Examination) -> dict[str, Any]:
    passed, left_out = len(run.passed), len(run.left_out)
    right = ngettext("%(n)d check has found nothing", "%(n)d checks have found nothing", passed) % {"n": passed}
    left = ngettext("%(n)d check was left out", "%(n)d checks were left out", left_out) % {"n": left_out}
    is_bad = run.is_over or any(finding.is_bad for finding in run.findings)
    return {
        "findings": list(_findings(run.findings)),
        "is_right": not is_bad,
        "lists": [(title, names) for title, names in ((right, run.passed), (left, run.left_out)) if names],
        "is_over": run.is_over,
    }


def _findings(findings: list[Finding]) -> Iterator[tuple[str, str, str, str]]:
    """Of each the level, the id, what is wrong and what to do."""
    for finding in findings:
        kind, word = _LEVELS[finding.level]
        yield badge(kind, str(word)), plain(finding.id), _told(finding.text), _told(finding.fix)


def _told(text: str) -> str:
    """What the database or the doctor says; a driver's words may be long."""
    return plain(text, TOLD_CHARS)


PAGE = SitePage("settings", _("Settings"), VIEW, settings_view)
