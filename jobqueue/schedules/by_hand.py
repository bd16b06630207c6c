"""Run a schedule now, disable it, enable it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue
from jobqueue.producer.enqueueing import add
from jobqueue.schedules.adopting import locked
from jobqueue.schedules.deciding import begin_anew, set_next
from jobqueue.schedules.declaring import check_name
from jobqueue.schedules.definitions import from_json
from jobqueue.schedules.listing import find, unknown
from jobqueue.validation import check_text

T = TypeVar("T")
REASON_CHARS = 200


def run_now(name: str, *, using: str | None = None) -> int:
    """Add a job of a schedule at once, also of one that is disabled; the job's id. Its ticks stay as they are.

    current_job().tick of the job is the present time. Raises InvalidValue if there is no such schedule or it is
    retired, and what enqueue() raises.
    """
    alias = alias_of(using)
    row = find(name, alias)
    if row.retired_at is not None:
        raise InvalidValue(
            f"the schedule {name!r} is retired: no worker has announced it since "
            f"{row.announced_at:%Y-%m-%d %H:%M} UTC. "
            "Nothing was written; enqueue its task, or declare the schedule again."
        )
    now = read_now(alias)
    return add(from_json(row.definition).job(now, None, now), using=alias)


def disable(name: str, *, reason: str, using: str | None = None) -> bool:
    """Fire no tick of a schedule until enable(), whatever the code says; False if it was disabled already.

    `reason`: 1 to 200 characters. Its jobs that are there go on. Raises InvalidValue if there is no such schedule.
    """
    words = check_text(reason, "reason").strip()
    if not 1 <= len(words) <= REASON_CHARS:
        raise InvalidValue(
            f"reason has {len(words)} characters; allowed are 1 to {REASON_CHARS}. Nothing was written; say in a few "
            "words why, for whoever finds it."
        )
    return _change(name, partial(_disable, words), alias_of(using))


def enable(name: str, *, using: str | None = None) -> bool:
    """Fire the ticks of a schedule again, from the next one on; False if it was enabled already.

    Raises InvalidValue if there is no such schedule.
    """
    alias = alias_of(using)
    return _change(name, partial(_enable, alias), alias)


def _disable(reason: str, row: Any) -> bool:
    if not row.enabled:
        return False
    row.enabled, row.reason = False, reason
    row.next_at = row.look_at = None
    return True


def _enable(using: str, row: Any) -> bool:
    if row.enabled:
        return False
    row.enabled, row.reason = True, ""
    begin_anew(row, using)
    set_next(row, from_json(row.definition).timing.after(row.now))
    return True


def _change(name: str, change: Callable[[Any], bool], using: str) -> bool:
    check_name(name)

    def work() -> bool:
        with vendor(using).transaction(connections[using]):
            row = locked(name, using)
            if row is None:
                raise unknown(name, using)
            changed = change(row)
            if changed:
                row.updated_at = UtcNow()
                row.save(using=using)
            return changed

    with explain_missing_table(using):
        return retry_transient("schedule", work, using=using)
