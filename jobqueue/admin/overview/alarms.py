"""The alarms that fire, and the workers that are silent, as sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.overview.reading import LATE_MAX, LEASES_MAX, Late, Silent
from jobqueue.admin.page.addresses import link, list_address, page_address
from jobqueue.admin.page.formatting import hint, moment, number, plain, short_worker, span
from jobqueue.admin.page.readonly import capped
from jobqueue.alarms import Alarm
from jobqueue.conf.alarms import LATE
from jobqueue.stats.live import COUNTS

if TYPE_CHECKING:
    from datetime import datetime

    from django_stubs_ext import StrOrPromise

NAME_CHARS, ABOUT_CHARS, ALARMS_SHOWN, SILENT_SHOWN = 80, 300, 50, 5
_OF_FAILED = ("failed", "dead_per_hour", "error_rate")
#: the figure of each alarm in words
WORDS: Mapping[str, StrOrPromise] = {
    "ready": _("ready jobs"),
    "scheduled": _("scheduled jobs"),
    "held": _("held jobs"),
    "running": _("running jobs"),
    "failed": _("failed jobs"),
    "oldest_age_seconds": _("age of the oldest ready job"),
    "rising_age_seconds": _("time for which the oldest job has been getting older"),
    "throughput_per_minute": _("jobs that end in a minute"),
    "dead_per_hour": _("jobs that failed for good in an hour"),
    "error_rate": _("share of runs that fail"),
    "silent": _("silent workers"),
    "stalled": _("workers whose claims make no progress"),
    "exhausted": _("workers on hosts that run short of something"),
    "refused_connections": _("refused connections to the database"),
    "late_schedules": _("schedules that are due and do not fire"),
}


def alarm_lines(firing: Sequence[Alarm], now: datetime) -> list[str]:
    """A line for each of the first ALARMS_SHOWN; and how many more there are."""
    lines = [sentence(alarm, now) for alarm in firing[:ALARMS_SHOWN]]
    if more := len(firing) - len(lines):
        lines.append(ngettext("and %(n)s more alarm", "and %(n)s more alarms", more) % {"n": number(more)})
    return lines


def sentence(alarm: Alarm, now: datetime) -> str:
    """What, how much, the limit, and since when, as a link to what it is about."""
    of_queue = gettext("queue %(queue)s") % {"queue": plain(alarm.queue, NAME_CHARS)}
    facts = {
        "subject": of_queue if alarm.queue else gettext("workers"),
        "name": WORDS.get(alarm.name, alarm.name),
        "value": _value(alarm.name, alarm.value),
        "limit": _value(alarm.name, alarm.threshold),
        "since": moment(alarm.since, now),
    }
    text = gettext("%(subject)s: %(name)s %(value)s, limit %(limit)s, since %(since)s") % facts
    if alarm.about:
        text += f" ({plain(alarm.names, ABOUT_CHARS)})"
    return link(_about(alarm), text)


def _about(alarm: Alarm) -> str:
    """The address of the workers, of the schedules, or of the jobs of the queue in the state that is counted."""
    if alarm.name == LATE:
        return list_address("schedule")
    if not alarm.queue:
        return list_address("worker")
    state = "failed" if alarm.name in _OF_FAILED else alarm.name if alarm.name in COUNTS else ""
    return list_address("job", queue=alarm.queue, **({"state": state} if state else {}))


def silent_lines(silent: Sequence[Silent], now: datetime) -> list[str]:
    """A line for each silent worker with a link to its page, the first SILENT_SHOWN; and how many more there are."""
    lines = [_silent(one, now) for one in silent[:SILENT_SHOWN]]
    if more := len(silent) - len(lines):
        text = ngettext("and %(n)s more silent worker", "and %(n)s more silent workers", more) % {"n": number(more)}
        lines.append(link(list_address("worker"), text))
    return lines


def late_lines(late: Late) -> list[str]:
    """A line about the schedules that are due and do not fire, if there are some."""
    if not late.count:
        return []
    text = ngettext(
        "%(n)s schedule is due and does not fire: %(name)s has been due for %(time)s",
        "%(n)s schedules are due and do not fire: %(name)s has been due for %(time)s",
        late.count,
    )
    facts = {"n": capped(late.count, LATE_MAX), "name": plain(late.first, NAME_CHARS), "time": span(late.seconds)}
    return [link(list_address("schedule"), text % facts)]


def _silent(worker: Silent, now: datetime) -> str:
    time = span((now - worker.heartbeat_at).total_seconds())
    if not worker.jobs:
        words = gettext("{name}: no heartbeat for {time}; it holds no job")
    else:
        words = ngettext(
            "{name}: no heartbeat for {time}, {n} lease will expire",
            "{name}: no heartbeat for {time}, {n} leases will expire",
            worker.jobs,
        )
    name = gettext("worker %(name)s") % {"name": plain(short_worker(worker.name), NAME_CHARS)}
    page = link(page_address("worker", worker.id), hint(name, plain(worker.name, NAME_CHARS)))
    return format_html(words, name=page, time=time, n=capped(worker.jobs, LEASES_MAX))


def _value(name: str, value: float) -> str:
    if name.endswith("_seconds"):
        return span(value)
    if name == "error_rate":
        return f"{100 * value:.0f} %"
    return number(value)
