"""The notices that are still to be sent: the JSON in the column `notices` of a row. Plain code.

A notice is the beginning or the end of an incident. It lists its recipients; one is taken out when it was told, and a
notice without recipients is taken out as a whole. Each recipient has its own tries, so that a mail is not repeated
because a webhook fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from jobqueue.alarms.alarm import Alarm, names_in
from jobqueue.backoff import Backoff

#: notices of one row; the oldest are dropped
NOTICES_MAX = 20
#: a notice that could not be told for so long is dropped
GIVE_UP_SECONDS = 86_400.0
#: between a try and the next one of another process, if this process says nothing more about it
TRY_SECONDS = 60.0
BACKOFF = Backoff(base_seconds=15.0, factor=2.0, cap_seconds=900.0)


@dataclass(slots=True)
class Pending:
    """One recipient that is still to be told."""

    again_at: datetime
    tries: int = 0
    error: str = ""  # of the last try


@dataclass(slots=True)
class Notice:
    """The beginning or the end of one incident."""

    alarm: Alarm
    at: datetime
    pending: dict[str, Pending] = field(default_factory=dict)  # by the key of the recipient

    @classmethod
    def of(cls, alarm: Alarm, at: datetime, keys: Iterable[str]) -> Notice:
        """A notice that nobody was told yet."""
        return cls(alarm, at, {key: Pending(at) for key in keys})


def decode(raw: object, queue: str, name: str) -> list[Notice]:
    """The notices of a row."""
    return [_decoded(one, queue, name) for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []


def _decoded(raw: dict[str, Any], queue: str, name: str) -> Notice:
    ended_at = _instant(raw["ended_at"]) if raw["ended_at"] else None
    since, about = _instant(raw["since"]), names_in(raw.get("about"))
    alarm = Alarm(queue, name, raw["value"], raw["threshold"], since, raw["incident"], ended_at, about)
    pending = {
        key: Pending(_instant(each["again_at"]), each["tries"], each["error"]) for key, each in raw["pending"].items()
    }
    return Notice(alarm, _instant(raw["at"]), pending)


def encode(notices: Iterable[Notice]) -> list[dict[str, Any]]:
    """Encode notices for the column."""
    return [
        {
            "incident": notice.alarm.incident,
            "since": notice.alarm.since.isoformat(),
            "ended_at": notice.alarm.ended_at.isoformat() if notice.alarm.ended_at else None,
            "value": notice.alarm.value,
            "threshold": notice.alarm.threshold,
            "about": list(notice.alarm.about),
            "at": notice.at.isoformat(),
            "pending": {
                key: {"again_at": each.again_at.isoformat(), "tries": each.tries, "error": each.error}
                for key, each in notice.pending.items()
            },
        }
        for notice in notices
    ]


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def next_at(notices: Iterable[Notice]) -> datetime | None:
    """When the next recipient is to be told; None if all were told."""
    return min((pending.again_at for _, pending in _first_with_notice(notices).values()), default=None)


def take_due(notices: Iterable[Notice], now: datetime, keys: Collection[str]) -> tuple[Notice, str] | None:
    """A notice that is due, and the one of `keys` to tell; None if there is none. It counts as tried from now on.

    A recipient gets the notices of a row in their order: the end of an incident waits for its beginning.
    """
    for key, (notice, pending) in _first_with_notice(notices).items():
        if key in keys and pending.again_at <= now:
            pending.tries += 1
            pending.again_at = now + timedelta(seconds=TRY_SECONDS)
            return notice, key
    return None


def note_told(notices: list[Notice], notice: Notice, key: str) -> None:
    """Record that the recipient was told."""
    for one in _same(notices, notice):
        one.pending.pop(key, None)
    notices[:] = [one for one in notices if one.pending]


def note_failed(notices: list[Notice], notice: Notice, key: str, error: str, now: datetime) -> None:
    """Record that the recipient could not be told: it is tried again after a pause that grows."""
    for one in _same(notices, notice):
        if (pending := one.pending.get(key)) is not None:
            pending.error = error
            pending.again_at = now + timedelta(seconds=BACKOFF.delay_seconds(pending.tries))


def drop_old(notices: list[Notice], now: datetime) -> list[Notice]:
    """Take out what could not be told for GIVE_UP_SECONDS, and the oldest beyond NOTICES_MAX; returns it."""
    limit = now - timedelta(seconds=GIVE_UP_SECONDS)
    kept = [notice for notice in notices if notice.at > limit][-NOTICES_MAX:]
    dropped = [notice for notice in notices if notice not in kept]
    notices[:] = kept
    return dropped


def _same(notices: Iterable[Notice], wanted: Notice) -> list[Notice]:
    """The notice that `wanted` was read as: the row may have changed since."""
    identity = _identity(wanted)
    return [notice for notice in notices if _identity(notice) == identity]


def _identity(notice: Notice) -> tuple[object, ...]:
    return notice.alarm.incident, notice.alarm.since, notice.alarm.ended_at is None


def _first_with_notice(notices: Iterable[Notice]) -> dict[str, tuple[Notice, Pending]]:
    found: dict[str, tuple[Notice, Pending]] = {}
    for notice in notices:
        for key, pending in notice.pending.items():
            found.setdefault(key, (notice, pending))
    return found
