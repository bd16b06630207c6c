"""The claim frees the dedupe keys of jobs that hold theirs only while they wait (unique="waiting")."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.models import Job
from jobqueue.models.rows import in_state
from jobqueue.transitions.leases import Lease


def with_waiting_keys(leases: Sequence[Lease]) -> list[Lease]:
    """Those of `leases` whose jobs have such a key. Their options say so, which every claim reads."""
    return [lease for lease in leases if isinstance(lease.options, dict) and lease.options.get("unique") == "waiting"]


def free_keys(leases: Sequence[Lease]) -> None:
    """Free the keys of claimed jobs that share a token. Where it fails, the next enqueue of the key takes it."""
    # A statement of its own, so that claims of other jobs stay as they are.
    if leases:
        rows = in_state((lease.job_id for lease in leases), Job.Status.PROCESSING, using=leases[0].using)
        rows.filter(lock_token=leases[0].token, dedupe_key__isnull=False).update(dedupe_key=None)
