"""Limits that are set while workers run; they are stronger than those of the settings and of the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Literal, TypeAlias

from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow
from jobqueue.durations import parse_rate
from jobqueue.exceptions import InvalidValue
from jobqueue.flow.rows import change, check_place
from jobqueue.gates.timing import open_soon
from jobqueue.models import FlowRule
from jobqueue.validation import INT_MAX, check_int


class _Keep(Enum):
    KEEP = "KEEP"


#: the argument of set_limit() for a limit that stays as it is
KEEP: Final = _Keep.KEEP
Kept: TypeAlias = Literal[_Keep.KEEP]


@dataclass(frozen=True, slots=True)
class Limit:
    """What set_limit() has set for a queue or a task. A limit that is KEEP is that of the settings, or of the task."""

    queue: str
    task: str | None  # None: the whole queue
    concurrency: int | Kept | None  # None: no limit; 0: paused
    rate: str | Kept | None


def set_limit(
    queue: str,
    *,
    task: object = None,
    concurrency: int | Kept | None = KEEP,
    rate: str | Kept | None = KEEP,
    using: str | None = None,
) -> None:
    """Limit how many jobs of `queue`, or of a task in it, run at once, and how fast they start ("10/s", "100/m").

    None = no limit, 0 = nothing starts. Stronger than the settings until clear_limit(). With a concurrency_key the
    limits of a task are those of each key. Raises InvalidValue, InvalidType before anything is written.
    """
    alias = alias_of(using)
    place, path = check_place(queue, task, using=alias)
    values: dict[str, object] = {}
    if concurrency is not KEEP:
        number = None if concurrency is None else check_int(concurrency, "concurrency", 0, INT_MAX)
        values |= {"sets_concurrency": True, "concurrency": number, "level": None}
    if rate is not KEEP:
        values |= {"sets_rate": True, "rate": None if rate is None else _checked(rate)}
    if not values:
        raise InvalidValue("set_limit() was given neither concurrency nor rate. Nothing was written; give one of them.")
    change("limit", place, path, alias, partial(_write, values))
    if path:
        open_soon(place, path, using=alias, relimited=True)


def clear_limit(queue: str, *, task: object = None, using: str | None = None) -> bool:
    """Let the limits of the settings, or of the task, count again; False if none was set here."""
    alias = alias_of(using)
    place, path = check_place(queue, task, using=alias)
    cleared = change("limit", place, path, alias, _clear)
    if cleared and path:
        open_soon(place, path, using=alias, relimited=True)
    return cleared


def limits(*, using: str | None = None) -> list[Limit]:
    """What set_limit() has set, by queue and task."""
    alias = alias_of(using)
    with explain_missing_table(alias):
        rows = FlowRule.objects.using(alias).order_by("queue", "task")
        return [
            Limit(
                row.queue,
                row.task or None,
                row.concurrency if row.sets_concurrency else KEEP,
                row.rate if row.sets_rate else KEEP,
            )
            for row in rows
            if row.sets_concurrency or row.sets_rate
        ]


def _checked(rate: object) -> str:
    # 0 starts nothing, in whatever unit.
    if rate in (0, "0") and not isinstance(rate, bool):
        return "0"
    parse_rate(rate)
    return str(rate).strip()


def _write(values: dict[str, object], row: FlowRule) -> bool:
    for name, value in values.items():
        setattr(row, name, value)
    row.updated_at = UtcNow()
    return True


def _clear(row: FlowRule) -> bool:
    if not (row.sets_concurrency or row.sets_rate):
        return False
    return _write(
        {"sets_concurrency": False, "concurrency": None, "level": None, "sets_rate": False, "rate": None}, row
    )
