"""Schedules in tests: fire one at an instant, and see when it would tick."""

from __future__ import annotations

from datetime import datetime, timedelta

from jobqueue.db.alias import alias_of
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidValue
from jobqueue.producer.enqueueing import add
from jobqueue.schedules.deciding import jitter_of
from jobqueue.schedules.declaring import Declared, declared
from jobqueue.schedules.definitions import from_json
from jobqueue.schedules.from_settings import declare_settings
from jobqueue.schedules.versions import document_of
from jobqueue.testing.runs import discover_tasks
from jobqueue.validation import check_instant, did_you_mean

TICKS_MAX = 10_000


def fire(name: str, at: datetime | None = None) -> int:
    """Add the job of one tick of a schedule of the code or the settings, as a worker would; the job's id.

    `at`: the tick, aware (default: now, by the database's clock); it need not be one of the schedule. Neither overlap
    nor missed ticks count. The job is due at once, or later by the schedule's jitter. Raises InvalidValue if no
    schedule has the name, and what enqueue() raises.
    """
    one = _find(name)
    alias = str(getattr(one.task.get_backend(), "database", None) or alias_of(None))
    now = read_now(alias)
    tick = now if at is None else check_instant(at, "at")
    late = jitter_of(name, tick, one.terms.jitter_seconds)
    job = from_json(document_of(one)).job(tick, now + timedelta(seconds=late) if late else None, now)
    return add(job, using=alias)


def ticks(name: str, since: datetime, until: datetime) -> list[datetime]:
    """The ticks of a schedule of the code or the settings after `since`, up to `until`: aware, in UTC, 10,000 at most.

    Raises InvalidValue if no schedule has the name.
    """
    timing = _find(name).terms.timing
    found: list[datetime] = []
    last, tick = check_instant(until, "until"), timing.after(check_instant(since, "since"))
    while tick is not None and tick <= last and len(found) < TICKS_MAX:
        found.append(tick)
        tick = timing.after(tick)
    return found


def _find(name: str) -> Declared:
    discover_tasks()
    declare_settings()
    if name not in declared():
        raise InvalidValue(
            f"no schedule is called {name!r:.200}{did_you_mean(name, declared())}. Nothing was written; schedules are "
            "declared in the tasks.py of an app, or in JOBQUEUE['SCHEDULES']."
        )
    return declared()[name]
