"""What the sub-commands have changed, recorded in the audit with the user of the process."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterable, Mapping

from django.db import Error

from jobqueue import bulk_verbs
from jobqueue.exceptions import DatabaseBusy, OutcomeUnknown
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text


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
        sys.stderr.write(f"{verb}: done, but not in the audit: {mask_text(one_line(str(error)))}\n")


def audit_jobs(verb: str, job_ids: Iterable[int], *, using: str) -> None:
    """Record the jobs that `verb` has changed."""
    ids = list(job_ids)
    audit(verb, {"job_ids": ",".join(map(str, ids))}, changed=len(ids), using=using)
