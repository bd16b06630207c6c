"""Alarms: figures of queues and workers that have reached their thresholds. firing() lists them.

The monitors of workers and reap_leases look every 15 seconds, one of them for all, and tell who stands in
JOBQUEUE["ALARMS"]["NOTIFY"]. State is in rows of job_alarm, so that it survives restarts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.masking import mask_text
from jobqueue.models import JobAlarm

__all__ = ["Alarm", "firing"]


_QUEUE_PAGE = "docs/runbook/queue-backs-up.md"
_DEAD_PAGE = "docs/runbook/dead-letters.md"
#: what to do about each kind of alarm
RUNBOOKS = {
    "ready": _QUEUE_PAGE,
    "scheduled": _QUEUE_PAGE,
    "held": "docs/howto/retry-policy.md",
    "running": _QUEUE_PAGE,
    "oldest_age_seconds": _QUEUE_PAGE,
    "rising_age_seconds": _QUEUE_PAGE,
    "throughput_per_minute": _QUEUE_PAGE,
    "failed": _DEAD_PAGE,
    "dead_per_hour": _DEAD_PAGE,
    "error_rate": _DEAD_PAGE,
    "silent": "docs/runbook/leases-run-out.md",
    "stalled": _QUEUE_PAGE,
    "exhausted": _QUEUE_PAGE,
    "refused_connections": "docs/runbook/no-connection-left.md",
    "late_schedules": "docs/howto/schedules.md",
}


@dataclass(frozen=True, slots=True)
class Alarm:
    """One incident: a figure that has reached its threshold. Instants are aware, by the clock of the database."""

    queue: str  # "" if it is about workers
    name: str  # an attribute of QueueStats, "rising_age_seconds", or an alarm about workers
    value: float  # at the last look, or when it ended
    threshold: float
    since: datetime
    incident: int  # the number of the incident among those of this queue and name
    ended_at: datetime | None = None  # None: it fires
    about: tuple[str, ...] = ()  # some of the workers, with their hosts, or of the schedules that it counts

    @property
    def text(self) -> str:
        """One line for people: what, how much, the threshold, and the page that says what to do."""
        subject = f"queue {mask_text(self.queue)}: {self.name}" if self.queue else f"workers: {self.name}"
        state = "is over" if self.ended_at else "fires"
        figures = f"value {self.value:g}, threshold {self.threshold:g}"
        since = f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        names = f" ({self.names})" if self.about else ""
        return f"alarm {state}: {subject}{names}, {figures}, {since}; see {RUNBOOKS[self.name]}"

    @property
    def names(self) -> str:
        """The names in `about`, separated by commas; "..." follows if there are more."""
        return ", ".join(self.about) + (", ..." if len(self.about) < self.value and self.about else "")


def firing(*, using: str | None = None) -> list[Alarm]:
    """The alarms that fire, by queue and name; those about workers first. One statement.

    As the last look found them. In the caller's transaction.
    """
    alias = alias_of(using)
    with explain_missing_table(alias):
        rows = JobAlarm.objects.using(alias).filter(quiet_at__isnull=True, firing=True).defer("notices")
        found = [alarm_of(row) for row in rows if row.since is not None]
    return sorted(found, key=lambda alarm: (alarm.queue, alarm.name))


def alarm_of(row: JobAlarm) -> Alarm:
    """The incident of a row that has had one."""
    assert row.since is not None
    ended_at = None if row.firing else row.ended_at
    about = names_in(row.about)
    return Alarm(row.queue, row.name, row.value, row.threshold, row.since, row.incident, ended_at, about)


def names_in(raw: object) -> tuple[str, ...]:
    """The names that a column or a notice has; () if another release wrote it otherwise."""
    return tuple(one for one in raw if isinstance(one, str)) if isinstance(raw, list) else ()
