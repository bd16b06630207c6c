"""Make a schedule by hand, change one, and take a change back. The admin and the import do it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import IntegrityError, connections, transaction

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_reason, check_text
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.callers_transaction import after_commit
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.exceptions import InvalidValue
from jobqueue.models import Schedule, ScheduleVersion
from jobqueue.producer.enqueueing import add
from jobqueue.schedules.adopting import locked, put_in_force
from jobqueue.schedules.deciding import Said, begin_anew, set_next, write_and_tell
from jobqueue.schedules.declaring import Terms, check_arguments, check_name
from jobqueue.schedules.definitions import TERMS, define, from_json, to_json
from jobqueue.schedules.listing import find, unknown

logger = logging.getLogger("jobqueue.schedules")

BY_CHARS = 150


def save(
    name: str,
    task: AnyTask,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    terms: Terms,
    *,
    by: str,
    using: str | None,
    enabled: bool = True,
    reason: str = "",
) -> bool:
    """Make a schedule of source "admin", or change the one of this name, until revert(); True if it is new.

    `terms`: of declaring.check_terms(). `by`: who does it, of which 150 characters are kept. `reason`: why it is not
    `enabled`, 1 to 200 characters; ignored if it is. The first tick of a new one is the first after now. Ticks of a
    changed one that are due are decided by its terms of before. Raises InvalidValue, also for a schedule that is
    retired, InvalidType, and what enqueue() raises for a wrong job; then nothing is written.
    """
    alias = alias_of(using)
    values = check_arguments(check_name(name), task, args, kwargs)
    columns = {"edited_by": check_text(by, "by")[:BY_CHARS], "reason": "" if enabled else check_reason(reason)}
    if getattr(task.get_backend(), "database", alias) != alias:
        raise InvalidValue(
            f"the jobs of {task.module_path} belong to another database than {alias!r}. Nothing was written; make the "
            "schedule in the database of the task's backend."
        )
    document = to_json(define(task, *values, terms.timing, {one: getattr(terms, one) for one in TERMS}))
    work = partial(_save, name, document, enabled, columns, alias)
    return _in_transaction(work, alias)


def revert(name: str, *, by: str, using: str | None) -> bool:
    """Put what workers announce of a schedule in force again; False if nothing was changed by hand.

    It stays disabled if it is. `by`: who does it, for the log. One of source "admin" becomes that of the code if
    workers have come to announce its name. Raises InvalidValue if there is no such schedule, or if no worker announces
    it, as those of source "admin"; then nothing is written.
    """
    alias = alias_of(using)
    check_name(name)
    check_text(by, "by")
    changed = _in_transaction(partial(_revert, name, alias), alias)
    if changed:
        text = "%s took back what was changed by hand in the schedule %r"
        after_commit(partial(logger.info, text, by or "an operator", name), alias)
    return changed


def _in_transaction(work: Callable[[Said], bool], using: str) -> bool:
    def whole(said: Said) -> bool:
        with vendor(using).transaction(connections[using]):
            return work(said)

    with explain_missing_table(using):
        return write_and_tell(whole, using)


def _save(
    name: str, document: Mapping[str, JSON], enabled: bool, columns: Mapping[str, str], using: str, said: Said
) -> bool:
    row = locked(name, using)
    if row is None and _insert(name, document, enabled, columns, using, said):
        return True
    row = row or locked(name, using)
    if row.retired_at is not None:
        raise InvalidValue(
            f"the schedule {name!r} is retired: no worker announces it since {row.announced_at:%Y-%m-%d %H:%M} UTC. "
            "Nothing was written; give the new one another name, or declare the schedule again."
        )
    put_in_force(row, document, using, said)
    row.edited, row.edited_by, row.reason = True, columns["edited_by"], columns["reason"]
    if enabled and not row.enabled:
        begin_anew(row, using)
    row.enabled = enabled
    set_next(row, from_json(document).timing.after(row.decided_until))
    row.updated_at = UtcNow()
    row.save(using=using)
    return False


def _insert(
    name: str, document: Mapping[str, JSON], enabled: bool, columns: Mapping[str, str], using: str, said: Said
) -> bool:
    row: Any = Schedule(name=name, source=Schedule.Source.ADMIN, enabled=enabled, **columns)
    row.now = row.decided_until = read_now(using)
    put_in_force(row, document, using, said)
    try:
        with transaction.atomic(using=using):
            row.save(using=using, force_insert=True)
    except IntegrityError:
        return False  # another process has made it just now
    return True


def _revert(name: str, using: str, said: Said) -> bool:
    row = locked(name, using)
    if row is None:
        raise unknown(name, using)
    version = ScheduleVersion.objects.using(using).filter(name=name, digest=row.announced_digest).first()
    if version is None:
        raise InvalidValue(
            f"no worker announces the schedule {name!r}, so there is nothing to put in force instead. Nothing was "
            "written; change it, or disable it."
        )
    if not row.edited and row.digest == version.digest:
        return False
    put_in_force(row, version.definition, using, said)
    # Also the time: a schedule that no worker has any more is retired like those of the code.
    row.source, row.announced_at = version.source, version.announced_at
    row.edited, row.edited_by = False, ""
    row.updated_at = UtcNow()
    row.save(using=using)
    return True


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
    return _change(name, partial(_disable, check_reason(reason)), alias_of(using))


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

    def work(said: Said) -> bool:
        row = locked(name, using)
        if row is None:
            raise unknown(name, using)
        changed = change(row)
        if changed:
            row.updated_at = UtcNow()
            row.save(using=using)
        return changed

    return _in_transaction(work, using)
