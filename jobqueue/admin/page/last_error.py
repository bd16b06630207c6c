"""The last error of a job as one line for lists. Of its text the end is read, where a traceback names the exception."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models.functions import Right

from jobqueue.admin.page.formatting import plain, short_class
from jobqueue.masking import mask_tail
from jobqueue.models import Job

TAIL_CHARS, LINE_CHARS = 500, 200


def error_tail() -> Right:
    """The end of the column last_error."""
    return Right("last_error", TAIL_CHARS)


def error_line(tail: str | None, *, read: int = TAIL_CHARS, most: int = LINE_CHARS) -> str:
    """The last line of the last `read` characters of an error: without secrets and without the module of its class."""
    lines = mask_tail(tail or "", read).strip().splitlines()
    return plain(short_class(lines[-1]), most) if lines else ""


def error_lines(job_ids: Collection[int], using: str) -> dict[int, str]:
    """The line of each of these jobs that is there. One statement, by the key."""
    if not job_ids:
        return {}
    rows = Job.objects.using(using).filter(pk__in=job_ids).annotate(tail=error_tail())
    return {job_id: error_line(tail) for job_id, tail in rows.values_list("pk", "tail")}


def message_of(error_class: str, line: str) -> str:
    """The last line of an error of this class, or the class, if the job has failed with another error since."""
    name = short_class(error_class)
    return line if line.startswith(name) else plain(name, LINE_CHARS)
