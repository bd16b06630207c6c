"""Pause, drain and resume: one row each, however many jobs wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial

from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue
from jobqueue.flow.rows import change, check_place
from jobqueue.gates.timing import open_soon
from jobqueue.models import FlowRule
from jobqueue.signals import queue_paused, queue_resumed
from jobqueue.validation import check_instant, check_text

REASON_CHARS, BY_CHARS = 200, 150


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
    values = {"mode": mode, "reason": words, "by": author, "since": UtcNow(), "until": until, "updated_at": UtcNow()}
    change("pause", queue, task, using, partial(_write, values))
    about = {"queue": queue, "task": task or None, "reason": words, "by": author, "until": until, "mode": str(mode)}
    send_after_commit(queue_paused, FlowRule, using=using, **about)


def check_reason(reason: object) -> str:
    """`reason` if it is a text of 1 to REASON_CHARS characters, without the spaces around it."""
    words = check_text(reason, "reason").strip()
    if not 1 <= len(words) <= REASON_CHARS:
        raise InvalidValue(
            f"reason has {len(words)} characters; allowed are 1 to {REASON_CHARS}. Nothing was written; say in a few "
            "words why, for whoever finds it."
        )
    return words


def _write(values: dict[str, object], row: FlowRule) -> bool:
    for name, value in values.items():
        setattr(row, name, value)
    return True


def _resume(row: FlowRule) -> bool:
    if row.mode == FlowRule.Mode.RUNNING:
        return False
    running: dict[str, object] = {"mode": FlowRule.Mode.RUNNING, "reason": "", "by": "", "since": None, "until": None}
    return _write(running | {"updated_at": UtcNow()}, row)


def _author(by: str | None) -> str:
    author = check_text(by, "by").strip() if by is not None else ""
    if len(author) > BY_CHARS:
        raise InvalidValue(f"by has {len(author)} characters; allowed are {BY_CHARS}. Nothing was written; shorten it.")
    return author
