"""What the sub-commands have changed, recorded in the audit with the user of the process."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from django.db import Error

from jobqueue import bulk_verbs
from jobqueue.base.validation import check_id
from jobqueue.cli.output import Result, complain
from jobqueue.exceptions import DatabaseBusy, OutcomeUnknown

T = TypeVar("T")


def author() -> str:
    """The user of this process; empty if there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container may run under a number that no user has.
        return ""


def audit(
    verb: str, filters: Mapping[str, str], *, changed: int = 1, reason: str = "", by: str | None = None, using: str
) -> None:
    """Record that `verb` has changed so many rows. What was done stays done if that fails: then stderr says so."""
    if not changed:
        return
    who = bulk_verbs.Who(user_name=author() if by is None else by, program="manage.py jobs")
    try:
        bulk_verbs.record_done(verb, filters, who=who, changed=changed, reason=reason, using=using)
    except (Error, DatabaseBusy, OutcomeUnknown) as error:
        # A database error would make the user believe that nothing was changed.
        complain(f"{verb}: done, but not in the audit: {error}")


def audit_jobs(verb: str, job_ids: Iterable[int], *, reason: str = "", using: str) -> None:
    """Record the jobs that `verb` has changed."""
    ids = list(job_ids)
    audit(verb, {"job_ids": ",".join(map(str, ids))}, changed=len(ids), reason=reason, using=using)


def change_each(
    verb: str | None,
    ids: Iterable[str],
    change: Callable[[int], T],
    told: Callable[[dict[int, T]], Result],
    *,
    reason: str = "",
    using: str,
) -> Iterator[Result]:
    """Change jobs one by one; told(found) is the Result. Those for which change(id) is true are recorded, if by a verb.

    All ids are checked before the first job is changed. After an error, what was done before is printed and recorded.
    """
    job_ids = [check_id(given_id) for given_id in ids]
    found: dict[int, T] = {}
    try:
        for job_id in job_ids:
            found[job_id] = change(job_id)
    finally:
        # First: whoever prints ends here if nobody reads the output any more.
        if verb is not None:
            audit_jobs(verb, (job_id for job_id, done in found.items() if done), reason=reason, using=using)
        yield told(found)
