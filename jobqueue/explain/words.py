"""A wait_reason in words: for lists and commands, which read nothing else. Imports no other module of the room."""

from __future__ import annotations

from django.utils.translation import gettext

from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.masking import mask_text
from jobqueue.models.group import HELD_BY_PARENTS, WAITS_FOR_PARENTS
from jobqueue.models.job import ALONE_REASON, HELD_REASON, QUARANTINED
from jobqueue.ordering import HALTED, WAITS


def reason_in_words(wait_reason: str | None, gate: int) -> str:
    """What a job with this wait_reason and `gate` waits for, in the active language; "" for None.

    The code and subject of a gate become a phrase. Of other texts, the secrets are masked.
    """
    if not wait_reason:
        return ""
    if gate == FLOW_GATE:
        code, _, subject = wait_reason.partition(" ")
        phrase = _phrase(code)
        return phrase % {"subject": subject} if phrase else mask_text(wait_reason)
    return _fixed(wait_reason) or mask_text(wait_reason)


def _phrase(code: str) -> str:
    if code == "paused":
        return gettext("task %(subject)s is paused")
    if code == "slot":
        return gettext("all slots of task %(subject)s are taken")
    if code == "key":
        return gettext("all slots of the concurrency key %(subject)s are taken")
    if code == "rate":
        return gettext("the rate limit of %(subject)s is used up for the moment")
    return gettext("the circuit breaker of %(subject)s is not closed") if code == "breaker" else ""


def _fixed(wait_reason: str) -> str:
    if wait_reason == WAITS:
        return gettext("waits for earlier jobs with its ordering key")
    if wait_reason == HALTED:
        return gettext("halted: an earlier job of its ordering key failed; resume() lets the key go on")
    if wait_reason == HELD_REASON:
        return gettext("held: its worker process died, or its lease ran out")
    if wait_reason == ALONE_REASON:
        return gettext("held: it is to run in a process of its own")
    if wait_reason == WAITS_FOR_PARENTS:
        return gettext("waits for its parents in the workflow")
    if wait_reason == HELD_BY_PARENTS:
        return gettext("held: a parent did not end well; resume the workflow, or retry the parent")
    if wait_reason == QUARANTINED:
        return gettext("quarantined: it may have killed its workers")
    return ""
