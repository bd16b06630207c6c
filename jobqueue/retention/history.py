"""Where ended jobs go before they are deleted: into the archive table, or into a file of JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import Stored
from jobqueue.db.prepared import prepare_insert
from jobqueue.masking import mask_text, mask_value
from jobqueue.models import ArchivedJob, Job, JobAttempt

#: called with the ids of locked jobs, before they are deleted in the same transaction; what it returns is called after
#: that, and before the commit
Keep = Callable[[Sequence[int], str], Callable[[], None] | None]
_KEPT = {field.name for field in ArchivedJob._meta.concrete_fields}
_COLUMNS = [field.name for field in Job._meta.concrete_fields if field.name in _KEPT]
_DOCUMENTS = ("payload", "result", "options")
_ATTEMPT_COLUMNS = ("attempt", "worker", "started_at", "ended_at", "cause", "error_class", "error", "log")


def archive(job_ids: Sequence[int], using: str) -> None:
    """Copy these jobs and their attempts to job_archive, in the open transaction."""
    archived = ArchivedJob.objects.using(using)
    # Jobs that were put back from there under their old ids.
    if known := list(archived.filter(pk__in=job_ids).values_list("pk", flat=True)):
        vendor(using).delete_by_key(archived, known)
    columns = [Stored(name) if name.endswith("_at") else name for name in _COLUMNS]
    rows = vendor(using).force_index(Job.objects.using(using).filter(pk__in=job_ids), "PRIMARY")
    prepare_insert(ArchivedJob, _COLUMNS, rows.values_list(*columns)).change()
    # One by one: the errors and log lines of many may be more than a statement can have.
    for job_id in _with_attempts(job_ids, using):
        archived.filter(pk=job_id).update(failures=_attempts(job_id, using))


def keep_by(settings: Settings) -> Callable[[str, str], Keep | None]:
    """Returns archive() for a queue and state whose RETENTION says so, else None."""
    return lambda queue, state: archive if settings.queue_retention(queue, state).archive else None


@contextmanager
def json_lines(path: str) -> Iterator[Keep]:
    """A function that appends jobs with their attempts to a file, one JSON object per line, with masked secrets.

    Lines are on the disk before the deletion is committed. If that fails, the jobs stay and are written again the next
    time: their `id` tells which lines are repeated. Raises OSError for a file that cannot be opened or written.
    """
    # The rows are of persons: nobody else may read a file that is made here.
    opener = partial(os.open, mode=0o600)
    with open(path, "a", encoding="utf-8", errors="backslashreplace", opener=opener) as file:
        if _is_torn(path):
            # A process was killed while it wrote the last line.
            file.write("\n")
        yield partial(_append, file)


def _is_torn(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"


def _append(file: TextIO, job_ids: Sequence[int], using: str) -> Callable[[], None]:
    """Make the lines of these jobs; what it returns writes them, when nothing else can refuse their deletion."""
    with_attempts = _with_attempts(job_ids, using)
    rows = vendor(using).force_index(Job.objects.using(using).filter(pk__in=job_ids), "PRIMARY")
    lines = []
    for job in rows.order_by("pk").values(*_COLUMNS):
        job["status"] = Job.Status(job["status"]).name.lower()
        job["failures"] = _attempts(job["id"], using) if job["id"] in with_attempts else None
        lines.append(json.dumps(_masked(job), default=_plain, ensure_ascii=False))

    def write() -> None:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())

    return write


def _with_attempts(job_ids: Sequence[int], using: str) -> set[int]:
    rows = JobAttempt.objects.using(using).filter(job_id__in=job_ids)
    return {*vendor(using).force_index(rows, "ix_attempt_job").values_list("job_id", flat=True)}


def _attempts(job_id: int, using: str) -> list[dict[str, Any]]:
    """The attempts of a job, oldest first, as JSON."""
    rows = JobAttempt.objects.using(using).filter(job_id=job_id).order_by("job_id", "pk")
    found = vendor(using).force_index(rows, "ix_attempt_job").values(*_ATTEMPT_COLUMNS)
    return [
        {name: _plain(value) if isinstance(value, datetime) else value for name, value in row.items()} for row in found
    ]


def _masked(job: dict[str, Any]) -> dict[str, Any]:
    """A row as `jobs show` has it."""
    named = {name: mask_value(job[name]) for name in _DOCUMENTS if name in job}
    texts = {name: mask_text(value) for name, value in job.items() if isinstance(value, str)}
    failures = [
        {name: mask_text(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in job["failures"] or ()
    ]
    return {**job, **texts, **named, "failures": failures or None}


def _plain(value: object) -> str:
    """What JSON has no form for: instants as text, keys as UTF-8 or, if they are none, in hexadecimal digits."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (bytes, memoryview)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    # Such as a payload of another program that is no JSON.
    return str(value)
