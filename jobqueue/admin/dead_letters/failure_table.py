"""Dead letters in groups of the same failure, as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.http import HttpRequest
from django.utils.translation import gettext

from jobqueue.admin.dead_letters.failure_note import note_cell
from jobqueue.admin.page.addresses import address_of, link
from jobqueue.admin.page.causes import CAUSES
from jobqueue.admin.page.formatting import NOTHING, hint, plain, relative, same_failure, short_class, short_task
from jobqueue.dead_letters import DeadLetters


def rows_of(
    groups: Sequence[DeadLetters], now: datetime, request: HttpRequest, *, redrives: bool
) -> list[tuple[object, ...]]:
    """The cells of each group; with `redrives`, the last one leads to the page that retries the whole group."""
    rows: list[tuple[object, ...]] = []
    for group in groups:
        more = [_redrive_of(group)] if redrives else []
        rows.append((*_cells(group, now), note_cell(group.fingerprint, group.note, request), *more))
    return rows


def _cells(one: DeadLetters, now: datetime) -> tuple[object, ...]:
    return (
        one.count,
        CAUSES.get(one.cause or "", plain(one.cause or NOTHING)),
        hint(plain(short_task(one.task)), plain(one.task)) if one.task else gettext("(handler)"),
        plain(short_class(one.error_class)) if one.error_class else NOTHING,
        relative(one.first_seen, now) if one.first_seen else NOTHING,
        relative(one.last_seen, now) if one.last_seen else NOTHING,
        same_failure(one.fingerprint) if one.fingerprint else NOTHING,
    )


def _redrive_of(one: DeadLetters) -> str:
    if not one.fingerprint:
        return NOTHING
    return link(address_of("redrive_new", fingerprint=one.fingerprint), gettext("Retry all"))
