"""Findings about locks in sentences, for the admin and the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.utils import translation
from django.utils.translation import gettext

from jobqueue.db.lock_facts import LockWait
from jobqueue.durations import format_seconds
from jobqueue.models import LockFinding

NOTHING = "-"


def finding_lines(finding: LockFinding) -> list[str]:
    """One line; for a deadlock several. What another version or plain SQL has written may not be readable."""
    try:
        return _lines(finding)
    except (TypeError, ValueError, LookupError, AttributeError):
        return [gettext("The details cannot be read: another version of the package has written them, or plain SQL.")]


def _lines(finding: LockFinding) -> list[str]:
    detail = finding.detail
    if finding.kind == LockFinding.Kind.DEADLOCK:
        return list(_deadlock_lines(detail))
    if finding.kind == LockFinding.Kind.WAIT:
        return [wait_line(LockWait(**detail))]
    if finding.kind == LockFinding.Kind.SLOW:
        text = gettext("%(runs)d runs waited %(time)s for locks: %(statement)s")
        return [text % {**detail, "time": format_seconds(detail["lock_seconds"])}]
    text = gettext(
        "%(lock)s %(key)s ends %(ttl_seconds)g s after it is acquired, but its job %(task)s may run for "
        "%(limit_seconds)g s: raise ttl_seconds, renew() between steps, or lower timeout_seconds."
    )
    return [text % detail]


def wait_line(wait: LockWait) -> str:
    """A sentence about who waits for whom."""
    text = gettext(
        "session %(waiting)d waited %(time)s for %(locked)s (%(mode)s) with: %(wanted)s; session %(blocking)d held it: "
        "%(held)s"
    )
    wanted = wait.waiting_statement or NOTHING
    return text % {
        "waiting": wait.waiting,
        "time": format_seconds(wait.seconds),
        "locked": wait.locked,
        "mode": wait.mode,
        "wanted": wanted,
        "blocking": wait.blocking,
        "held": blocker(wait),
    }


def blocker(wait: LockWait) -> str:
    """The statement of the blocking session."""
    statement = wait.blocking_statement or NOTHING
    if not wait.blocker_idles:
        return statement
    return gettext("idle in its transaction, before that: %(statement)s") % {"statement": statement}


def _deadlock_lines(detail: Mapping[str, Any]) -> Iterator[str]:
    for party in detail["parties"]:
        facts = {"session": party["session"], "statement": party["statement"] or NOTHING}
        yield gettext("session %(session)d: %(statement)s") % facts
        for lock in party["holds"]:
            yield "    " + gettext("held: %(lock)s") % {"lock": lock}
        for lock in party["waits_for"]:
            yield "    " + gettext("waited for: %(lock)s") % {"lock": lock}
        if party["rolled_back"]:
            yield "    " + gettext("was rolled back")
    if detail["unseen"]:
        yield translation.gettext(detail["unseen"])
