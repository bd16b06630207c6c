"""Moves the present limit of queues with CONCURRENCY (least, most): up while jobs wait, down while threads are idle.

And down by half while a worker is in trouble. The level is in job_flow, one for all workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from django.db import OperationalError, connections

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.gates.backlog import due_count
from jobqueue.gates.locking import update_unlocked
from jobqueue.gates.slots import running
from jobqueue.models import FlowRule

#: between two steps of a queue, whichever worker takes them
STEP_SECONDS = 2.0
#: how long to wait for an operator's transaction that is making the row of a queue
_MAKING_SECONDS = 0.3


def run_once(settings: Settings, *, using: str, in_trouble: Callable[[], bool] = lambda: False) -> Counter[str]:
    """Move each level by one step, if it is time. Nothing is read where no queue has bounds.

    `in_trouble`: whether this worker takes fewer jobs now.
    """
    bounds = {
        queue: (own.concurrency[0], own.concurrency[1])
        for queue, own in settings.queues.items()
        if isinstance(own.concurrency, (tuple, list))
    }
    trouble = bool(bounds) and in_trouble()
    moved = [_move(queue, least, most, trouble, using) for queue, (least, most) in bounds.items()]
    return Counter(levels_moved=sum(moved))


def next_level(level: int, least: int, most: int, *, ready: int, busy: int, trouble: bool) -> int:
    """A quarter up while the level is used up and jobs wait, a quarter down while less than half of it is used."""
    if trouble:
        level //= 2
    elif ready and busy >= level:
        level += max(1, level // 4)
    elif not ready and 2 * busy < level:
        level -= max(1, level // 4)
    return min(most, max(least, level))


def _move(queue: str, least: int, most: int, trouble: bool, using: str) -> bool:
    rows = FlowRule.objects.using(using).filter(queue=queue, task="")
    rule = retry_transient("limit", rows.first, using=using)
    if rule is None:
        if not retry_transient("limit", partial(_make, queue, using), using=using):
            return False
        rule = FlowRule(queue=queue)
    if rule.sets_concurrency:
        return False
    level = min(most, max(least, rule.level or least))
    new = next_level(
        level,
        least,
        most,
        # One that is held, paused, or waits for its key or a gate does not wait for a place.
        ready=retry_transient("limit", partial(due_count, queue, 1, using, gates=(0,)), using=using),
        busy=retry_transient("limit", partial(running, queue, level, using), using=using),
        trouble=trouble,
    )
    if new == rule.level or (rule.level is None and new == least):
        return False
    # Of several workers one takes the step.
    mine = rows.filter(level=rule.level, updated_at__lte=UtcNowPlus(-STEP_SECONDS))
    if rule.level is None:
        mine = rows.filter(level=None)
    # An operator's transaction may have it locked for long: the next look takes the step.
    return bool(update_unlocked(mine, using, "limit", level=new, updated_at=UtcNow()))


def _make(queue: str, using: str) -> bool:
    """Insert the row of a queue, unless another session does; False if that one has not ended."""
    locks = vendor(using).locks
    try:
        with locks.brief_transaction(connections[using], _MAKING_SECONDS):
            vendor(using).insert_missing(connections[using], [FlowRule(queue=queue)])
    except OperationalError as error:
        if not locks.is_lock_timeout(error):
            raise
        return False
    return True
