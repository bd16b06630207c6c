"""Jobs that come back to the lane of their ordering key, and keys that are let go on."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import connections
from django.db.models import F

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job, LaneEntry
from jobqueue.ordering import lanes
from jobqueue.ordering.gate import KEY_GATE, WAITS
from jobqueue.ordering.promote import promote_next
from jobqueue.validation import check_key, check_queue


def resume(queue: str, ordering_key: str | bytes, *, using: str | None = None) -> bool:
    """Let a key go on that a failed job blocks or halts: that job is left behind, FAILED, and the next one runs.

    False if nothing holds the key up. Raises InvalidValue, InvalidType.
    """
    alias = alias_of(using)
    raw = check_key(ordering_key, "ordering_key")
    seen: set[tuple[int, bool]] = set()
    done = retry_transient(partial(_resume, lanes.lane_of(check_queue(queue), raw), alias, seen), using=alias)
    if done:
        promote_next([(queue, raw)], using=alias)
    return done


def _resume(lane: int, using: str, seen: set[tuple[int, bool]]) -> bool:
    """`seen`: the heads that earlier tries have met, whose commits may have been done without an answer."""
    with vendor(using).transaction(connections[using]):
        heads = lanes.front(lane, using=using, depth=1)
        if seen and not seen & {(head.id, head.halted) for head in heads}:
            return True
        for head in heads:
            seen.add((head.id, head.halted))
            # The job first, as in retry; and its state as it is now, whatever this transaction's snapshot shows.
            jobs = Job.objects.using(using).filter(pk=head.job_id).select_for_update()
            status = jobs.values_list("status", flat=True).first()
            place = LaneEntry.objects.using(using).filter(pk=head.id)
            if not place.select_for_update().values_list("pk", flat=True):
                break
            if status == Job.Status.FAILED:
                return bool(vendor(using).delete_by_key(place, [head.id]))
            return bool(place.filter(halted=True).update(halted=False))
    return False


def return_to_lane(job: Job, using: str) -> dict[str, Any]:
    """The columns of a finished `job` with an ordering key that is to run again: at its old place while it has that,
    else at the end of its lane. In the transaction that makes it READY.
    """
    assert job.ordering_key is not None
    places = LaneEntry.objects.using(using)
    found = places.filter(job_id=job.pk).values_list("pk", flat=True).first()
    # By its key, as whoever removes it does, and written: a snapshot from before must not remove it after us.
    if found is not None and places.filter(pk=found).update(halted=F("halted")):
        return {"wait_reason": WAITS if job.gate else None}
    lanes.hold([(job.queue, job.ordering_key)], using)
    lanes.join([(lanes.lane_of(job.queue, job.ordering_key), job.pk)], using)
    return {"gate": KEY_GATE, "wait_reason": WAITS}
