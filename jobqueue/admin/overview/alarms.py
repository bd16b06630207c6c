"""The alarms that fire, as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import moment, number, plain, span
from jobqueue.alarms import Alarm

if TYPE_CHECKING:
    from datetime import datetime

    from django_stubs_ext import StrOrPromise

NAME_CHARS = 80
#: the figure of each alarm in words
WORDS: Mapping[str, StrOrPromise] = {
    "ready": _("ready jobs"),
    "scheduled": _("scheduled jobs"),
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
}


def sentence(alarm: Alarm, now: datetime) -> str:
    """What, how much, the limit, and since when."""
    of_queue = gettext("queue %(queue)s") % {"queue": plain(alarm.queue, NAME_CHARS)}
    facts = {
        "subject": of_queue if alarm.queue else gettext("workers"),
        "name": WORDS.get(alarm.name, alarm.name),
        "value": _value(alarm.name, alarm.value),
        "limit": _value(alarm.name, alarm.threshold),
        "since": moment(alarm.since, now),
    }
    return gettext("%(subject)s: %(name)s %(value)s, limit %(limit)s, since %(since)s") % facts


def _value(name: str, value: float) -> str:
    if name.endswith("_seconds"):
        return span(value)
    if name == "error_rate":
        return f"{100 * value:.0f} %"
    return number(value)
