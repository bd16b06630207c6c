"""Look at the rows of what a child has in hand: which leases were lost, which jobs are to be canceled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobqueue.models import Job
from jobqueue.worker.shared.scoreboard import CANCEL, LOST, Hold


def flag(in_hand: Mapping[tuple[int, int], Any], using: str) -> None:
    """Flag lease_slots by (job_id, fence): what runs sees it as context.should_stop, what waits is not started."""
    open_ends = {
        key: lease_slot for key, lease_slot in in_hand.items() if lease_slot.hold in (Hold.WAITING, Hold.RUNNING)
    }
    if not open_ends:
        return
    rows = Job.objects.using(using).filter(pk__in=[job_id for job_id, _ in open_ends])
    facts = {row[0]: row[1:] for row in rows.values_list("pk", "status", "fence", "cancel_requested_at")}
    for (job_id, fence), lease_slot in open_ends.items():
        status, current, cancel = facts.get(job_id, (None, None, None))
        # Its place may have been given to another job meanwhile.
        if (lease_slot.job_id, lease_slot.fence) == (job_id, fence):
            lease_slot.flags |= LOST if (status, current) != (Job.Status.PROCESSING, fence) else 0
            lease_slot.flags |= CANCEL if cancel is not None else 0
