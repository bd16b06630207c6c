"""Jobs by a value among their arguments: no index has these, so the newest jobs are looked through, for a while."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Q

from jobqueue.base.payload import JSON
from jobqueue.db import vendor
from jobqueue.db.prepared import ids_that_meet
from jobqueue.masking import mask_value
from jobqueue.models import Job

#: jobs of one look, and how long it takes
ROWS_MAX, SECONDS = 100_000, 1.0
#: jobs of one statement, at first and at most; and how long one is to take
SLICE, SLICE_MAX, SLICE_SECONDS = 100, 5_000, 0.1


class LookedThrough(NamedTuple):
    """The ids of the jobs that have the value, newest first, and how many jobs were looked through.

    `last_id` and `since` are the id of the last one of these and when it was added; behind it the next look goes on.
    `last_id` None: no older job is left.
    """

    ids: list[int]
    number: int
    last_id: int | None
    since: datetime | None


def with_argument(text: str, rest: Q, *, most: int, using: str, before: int | None = None) -> LookedThrough:
    """The newest jobs, of lower ids than `before`, that meet `rest` and of which an argument, or an entry of one, is
    `text`: a text, or a number, true, false or null as JSON has it. A value that is shown masked is not found.

    Ends after `most` jobs that have it, ROWS_MAX jobs or SECONDS.
    """
    ids: list[int] = []
    wanted = _meanings(text)
    number, size, since, until = 0, SLICE, None, time.monotonic() + SECONDS
    while True:
        begun = time.monotonic()
        jobs = vendor(using).force_index(Job.objects.using(using), "PRIMARY").order_by("-pk")
        part = jobs if before is None else jobs.filter(pk__lt=before)
        rows = list(part.values_list("pk", "task", "payload", "created_at")[:size])
        meeting = set(ids_that_meet(part.only("pk")[:size], rest, most=size)) if rest and rows else None
        for job_id, task, payload, created_at in rows:
            number, before, since = number + 1, job_id, created_at
            if (meeting is None or job_id in meeting) and _shows(wanted, _arguments(task, payload)):
                ids.append(job_id)
                if len(ids) == most:
                    return LookedThrough(ids, number, before, since)
        if len(rows) < size:
            return LookedThrough(ids, number, None, since)
        now = time.monotonic()
        if number >= ROWS_MAX or now > until:
            return LookedThrough(ids, number, before, since)
        size = min(SLICE_MAX, 2 * size) if now - begun < SLICE_SECONDS else max(SLICE, size // 2)


def _arguments(task: str | None, payload: Any) -> JSON:
    is_call = task is not None and isinstance(payload, dict)
    return [payload.get("args"), payload.get("kwargs")] if is_call else payload


def _shows(wanted: Sequence[JSON], value: JSON) -> bool:
    """Whether a person who sees the value, with its masks, sees one of `wanted` in it."""
    return _has(wanted, value) and _has(wanted, mask_value(value))


def _meanings(text: str) -> list[JSON]:
    """The text itself, and the number, true, false or null that it is as JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    return [text] if isinstance(value, (str, list, dict)) else [text, value]


def _has(wanted: Sequence[JSON], value: JSON) -> bool:
    values: list[Any] = [value]
    while values:
        found = values.pop()
        if isinstance(found, dict):
            values += found.values()
        elif isinstance(found, list):
            values += found
        elif found in wanted and any(found == one and type(found) is type(one) for one in wanted):
            return True
    return False
