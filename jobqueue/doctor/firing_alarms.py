"""The alarms that fire: the doctor's exit status tells of them, too."""

from __future__ import annotations

from collections.abc import Iterator

from jobqueue.alarms import firing
from jobqueue.alarms.alarm import RUNBOOKS
from jobqueue.alarms.looking import is_stale, last_look_seconds
from jobqueue.doctor.finding import Finding, Level

#: alarms that become findings of their own
SHOWN = 20


def firing_alarms(using: str) -> Iterator[Finding]:
    """alarm_fires, for each alarm; beyond SHOWN one for all others."""
    if is_stale(age := last_look_seconds(using=using)):
        ago = "ever" if age is None else f"for {age:.0f} s"
        yield Finding(
            Level.WARNING,
            "alarms_stale",
            f"Nobody has looked at the figures of ALARMS {ago}, so alarms neither begin nor end.",
            "Start a worker without --no-reaper, or run reap_leases by cron.",
            {"last_look_seconds": age},
        )
    found = firing(using=using)
    for alarm in found[:SHOWN]:
        about = f"queue {alarm.queue}: {alarm.name}" if alarm.queue else f"workers: {alarm.name}"
        yield Finding(
            Level.WARNING,
            "alarm_fires",
            f"An alarm has fired since {alarm.since:%Y-%m-%d %H:%M:%S} UTC: {about} is {alarm.value:g}, and its "
            f"threshold is {alarm.threshold:g}{f' ({alarm.names})' if alarm.about else ''}.",
            f"See {RUNBOOKS[alarm.name]}.",
            {
                "queue": alarm.queue,
                "name": alarm.name,
                "value": alarm.value,
                "threshold": alarm.threshold,
                "about": list(alarm.about),
                "since": alarm.since.isoformat(),
                "incident": alarm.incident,
            },
        )
    if len(found) > SHOWN:
        yield Finding(
            Level.WARNING,
            "alarm_fires",
            f"More alarms fire: {len(found) - SHOWN}.",
            "List them: python manage.py jobs alarms",
            {"more": len(found) - SHOWN},
        )
