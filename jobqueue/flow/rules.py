"""Pause, drain and resume, and limits that are set while workers run: one row each, however many jobs wait.

Such limits are stronger than those of the settings and of the tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import partial

from django.db import IntegrityError, transaction

from jobqueue.base.durations import parse_rate, parse_seconds
from jobqueue.base.validation import (
    INT_MAX,
    KEEP,
    Kept,
    check_instant,
    check_int,
    check_queue,
    check_reason,
    check_text,
    did_you_mean,
)
from jobqueue.conf.known_tasks import path_of
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.db.retry import Verb, retry_transient
from jobqueue.exceptions import InvalidValue, UnknownQueue
from jobqueue.gates.rules import forget_rules
from jobqueue.gates.timing import open_soon
from jobqueue.models import FlowRule
from jobqueue.producer.queue_names import known_queues
from jobqueue.signals import queue_paused, queue_resumed
from jobqueue.tasks import registry

BY_CHARS = 150


@dataclass(frozen=True, slots=True)
class Paused:
    """A pause or drain. Instants are aware; `until` None: it lasts until resume()."""

    queue: str
    task: str | None  # None: the whole queue
    mode: str  # "paused" or "draining"
    reason: str
    by: str
    since: datetime
    until: datetime | None


def pause(
    queue: str,
    *,
    task: object = None,
    reason: str,
    until: datetime | None = None,
    by: str | None = None,
    using: str | None = None,
) -> None:
    """Start no job of `queue`, or of a task in it, until resume() or `until` (aware, by the database's clock).

    Jobs that run go on. Jobs can still be added. In effect within a second of the commit, in all processes, and across
    restarts. Replaces a pause of the same queue or task. Raises InvalidValue, InvalidType; then nothing is written.
    """
    alias = alias_of(using)
    place, path = check_place(queue, task, using=alias)
    if until is not None and check_instant(until, "until") <= read_now(alias):
        raise InvalidValue(f"until={until.isoformat()} has passed. Nothing was written; give a later instant.")
    _set(place, path, FlowRule.Mode.PAUSED, reason, until, by, alias)


def drain(queue: str, *, reason: str, by: str | None = None, using: str | None = None) -> None:
    """Refuse new jobs of `queue` with QueueFull until resume(), while those that are there are worked off.

    As pause() otherwise. Retries of jobs that are there are no new jobs.
    """
    alias = alias_of(using)
    _set(*check_place(queue, using=alias), FlowRule.Mode.DRAINING, reason, None, by, alias)


def resume(queue: str, *, task: object = None, by: str | None = None, using: str | None = None) -> bool:
    """End the pause or drain of `queue`, or of a task in it; False if there was none. Limits stay."""
    alias, author = alias_of(using), _author(by)
    place, path = check_place(queue, task, using=alias)
    was_over = False

    def end(row: FlowRule) -> bool:
        nonlocal was_over
        was_over = row.until is not None and row.until <= read_now(alias)
        return _resume(row)

    changed = change("resume", place, path, alias, end)
    if changed and path:
        open_soon(place, path, using=alias)
    if changed and not was_over:
        about = {"queue": place, "task": path or None, "by": author}
        send_after_commit(queue_resumed, FlowRule, using=alias, **about)
    return changed and not was_over


def paused(*, using: str | None = None) -> list[Paused]:
    """The pauses and drains in effect, by queue and task."""
    alias = alias_of(using)
    rows = FlowRule.objects.using(alias).exclude(mode=FlowRule.Mode.RUNNING).exclude(until__lte=UtcNow())
    found: list[FlowRule] = retry_transient("pause", lambda: list(rows.order_by("queue", "task")), using=alias)
    return [Paused(row.queue, row.task or None, row.mode, row.reason, row.by, row.since, row.until) for row in found]


def _set(
    queue: str, task: str, mode: FlowRule.Mode, reason: str, until: datetime | None, by: str | None, using: str
) -> None:
    words, author = check_reason(reason), _author(by)
    values = {"mode": mode, "reason": words, "by": author, "since": UtcNow(), "until": until}
    change("pause", queue, task, using, partial(_write, values))
    about = {"queue": queue, "task": task or None, "reason": words, "by": author, "until": until, "mode": str(mode)}
    send_after_commit(queue_paused, FlowRule, using=using, **about)


def _write(values: Mapping[str, object], row: FlowRule) -> bool:
    for name, value in {**values, "updated_at": UtcNow()}.items():
        setattr(row, name, value)
    return True


def _resume(row: FlowRule) -> bool:
    running = {"mode": FlowRule.Mode.RUNNING, "reason": "", "by": "", "since": None, "until": None}
    return row.mode != FlowRule.Mode.RUNNING and _write(running, row)


def _author(by: str | None) -> str:
    author = check_text(by, "by").strip() if by is not None else ""
    if len(author) > BY_CHARS:
        raise InvalidValue(f"by has {len(author)} characters; allowed are {BY_CHARS}. Nothing was written; shorten it.")
    return author


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


def _clear(row: FlowRule) -> bool:
    none = {"sets_concurrency": False, "concurrency": None, "level": None, "sets_rate": False, "rate": None}
    return (row.sets_concurrency or row.sets_rate) and _write(none, row)


def check_place(queue: object, task: object = None, *, using: str) -> tuple[str, str]:
    """(queue, task) of a rule; the task is "" for the whole queue. Raises InvalidValue, InvalidType, UnknownQueue.

    A queue must be in TASKS["QUEUES"] if that has any, and a task be in the tasks.py of an app; or have a rule already,
    which can be ended after the queue or the task is gone.
    """
    name = check_queue(queue)
    path = "" if task is None else _path_of(task)
    names = known_queues()
    if names is not None and name not in names and not _has_rule(name, path, using):
        raise UnknownQueue(
            f"queue {name!r} is not in TASKS['QUEUES'] ({', '.join(sorted(names))}){did_you_mean(name, names)}. "
            "Nothing was written."
        )
    if path and registry.find_task(path) is None:
        # As in a shell: the tasks of all apps are imported before one is denied.
        list(registry.discover())
    if path and registry.find_task(path) is None and not _has_rule(name, path, using):
        found = did_you_mean(path, registry.names()[0])
        raise InvalidValue(f"no task is called {path!r:.200}{found}. Nothing was written.")
    return name, path


def _path_of(task: object) -> str:
    path = check_text(task if isinstance(task, str) else getattr(task, "module_path", task), "task")
    if not path:
        raise InvalidValue("task is empty. Nothing was written; leave it out for the whole queue.")
    # Jobs that are stored under an alias obey the rule of the task.
    return path_of(path)


def change(verb: Verb, queue: str, task: str, using: str, write: Callable[[FlowRule], bool]) -> bool:
    """Call `write` with the locked row of (queue, task), and save the row if it returns True; what it returned."""
    changed = retry_transient(verb, partial(_change, queue, task, using, write), using=using)
    forget_rules()
    return changed


def _change(queue: str, task: str, using: str, write: Callable[[FlowRule], bool]) -> bool:
    rows = FlowRule.objects.using(using).filter(queue=queue, task=task)
    with transaction.atomic(using=using):
        row = rows.select_for_update().first()
        if row is None:
            row = _made(queue, task, using) or rows.select_for_update().get()
        changed = write(row)
        if changed:
            row.save(using=using)
        return changed


def _made(queue: str, task: str, using: str) -> FlowRule | None:
    """A new row; None if another session has made it meanwhile."""
    row = FlowRule(queue=queue, task=task)
    try:
        with transaction.atomic(using=using):
            row.save(using=using, force_insert=True)
    except IntegrityError:
        return None
    return row


def _has_rule(queue: str, task: str, using: str) -> bool:
    with explain_missing_table(using):
        return FlowRule.objects.using(using).filter(queue=queue, task=task).exists()


def read_until(text: str, *, using: str, zone: tzinfo | None = None) -> datetime:
    """The instant of a text such as "2026-01-31T18:00+09:00", or of "2h" from now by the database's clock.

    One without an offset is in `zone`; without `zone` it is refused. Raises InvalidValue.
    """
    words = text.strip()
    try:
        # First: "20260131" is a day, and not so many seconds.
        instant = datetime.fromisoformat(words)
    except ValueError:
        return read_now(using) + timedelta(seconds=_seconds(words))
    if instant.utcoffset() is not None:
        return instant
    if zone is None:
        raise InvalidValue(
            f"until={words} has no offset from UTC, so its instant is unknown. Nothing was written; write "
            "2026-01-31T18:00+09:00, or a duration from now such as 2h."
        )
    return instant.replace(tzinfo=zone)


def _seconds(words: str) -> float:
    try:
        return parse_seconds(words)
    except InvalidValue as error:
        raise InvalidValue(
            f"until: {error}. An instant has the form 2026-01-31T18:00+09:00. Nothing was written."
        ) from None
