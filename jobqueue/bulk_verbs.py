"""Bulk verbs as callers see them: one verb for all jobs that match a filter, recorded as a row of job_audit.

Workers carry them out, a chunk per transaction: runs.bulk_steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import Error
from django.db.models import QuerySet

from jobqueue.base.validation import check_id
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InvalidValue, OutcomeUnknown
from jobqueue.failures import storable
from jobqueue.models import AuditEvent
from jobqueue.models.audit import PROBLEM_CHARS, PROGRAM_CHARS, REASON_CHARS, USER_CHARS
from jobqueue.runs import stepping
from jobqueue.runs.job_filter import check_filters, matching
from jobqueue.runs.verbs import check_verb
from jobqueue.runs.walking import count, newest_id

__all__ = ["Who", "matching", "record", "record_done", "stop"]


@dataclass(frozen=True, slots=True)
class Who:
    """Who asks for it: a user, by id and name, or a program."""

    user_id: str = ""
    user_name: str = ""
    program: str = ""


def record(
    verb: str,
    filters: Mapping[str, str],
    *,
    who: Who,
    reason: str = "",
    everything: bool = False,
    until_id: int | None = None,
    using: str | None = None,
) -> AuditEvent:
    """Record that `verb` is to change the jobs that match; workers begin within about a second, oldest first.

    Only jobs with ids up to `until_id` are touched, by default those that exist now. Without a filter everything=True
    is needed. Raises InvalidValue and InvalidType before anything is written, and OutcomeUnknown.
    """
    alias = alias_of(using)
    wanted = check_filters(filters)
    check_verb(verb, wanted)
    if not wanted and everything is not True:
        raise InvalidValue("a bulk action needs a filter. Nothing was written; for all jobs pass everything=True.")
    with explain_missing_table(alias):
        newest = newest_id(alias)
        until = newest if until_id is None else min(until_id, newest)
        event = _event(verb, wanted, who, reason, matched=count(verb, wanted, until, alias), until_id=until)
        _insert(event, alias)
        return _read_back(event.pk, alias)


def record_done(
    verb: str, filters: Mapping[str, str], *, who: Who, changed: int, reason: str = "", using: str | None = None
) -> None:
    """Record a verb that has been applied already, as an action that has ended. `verb` may be any word.

    Raises OutcomeUnknown.
    """
    alias = alias_of(using)
    ended = {"due_at": None, "started_at": UtcNow(), "ended_at": UtcNow(), "phase": AuditEvent.State.DONE}
    _insert(_event(verb, filters, who, reason, matched=changed, changed=changed, until_id=0, **ended), alias)


def _event(verb: str, filters: Mapping[str, str], who: Who, reason: str, **columns: Any) -> AuditEvent:
    return AuditEvent(
        user_id=who.user_id,
        user_name=storable(who.user_name, USER_CHARS),
        program=storable(who.program, PROGRAM_CHARS),
        verb=verb,
        filters=dict(filters),
        reason=storable(reason.strip(), REASON_CHARS),
        **columns,
    )


def _insert(event: AuditEvent, using: str) -> None:
    try:
        retry_transient("bulk", lambda: event.save(using=using, force_insert=True), using=using, repeatable=False)
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"whether the bulk action was recorded is unknown: the connection broke ({error.__cause__}) before the "
            "answer. Look at the audit before you repeat it."
        ) from error


def _read_back(event_id: int, using: str) -> AuditEvent:
    """Read the record again, with the columns that the database has filled in."""
    rows: QuerySet[AuditEvent] = AuditEvent.objects.using(using)
    try:
        return retry_transient("bulk", lambda: rows.get(pk=event_id), using=using)
    except (Error, DatabaseBusy) as error:
        # A caller would take a database error to mean that nothing was written.
        raise OutcomeUnknown(
            f"bulk action {event_id} was recorded, but could not be read again ({error}). Look at the audit before you "
            "repeat it."
        ) from error


def stop(event_id: int | str, *, by: str = "", using: str | None = None) -> bool:
    """End a bulk action: no job is changed by it after the commit. False if it does not exist or has ended."""
    number, alias = check_id(event_id, "a bulk action's id"), alias_of(using)
    told = storable(f"stopped by {by}" if by else "stopped", PROBLEM_CHARS)
    return stepping.stop(number, told, model=AuditEvent, verb="bulk", using=alias)
