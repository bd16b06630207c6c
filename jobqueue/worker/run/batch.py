"""Several leases in one call of a @handler(batch=...): which leases share a call, and the result of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jobqueue.base.payload import readable as readable_payload
from jobqueue.exceptions import BatchErrors, PayloadError, ResultError
from jobqueue.signals import RunOutcome
from jobqueue.tasks import registry
from jobqueue.transitions import Lease
from jobqueue.transitions.verb import observe_ends
from jobqueue.worker.run.attempt import Attempt

_MISSING = object()
_NOT_RETRIED = (
    "Its effects have happened, so the job is not retried. A batch handler returns None, a list with one result for "
    "each lease in their order, or a dict of results by job id."
)


def batch_of(queue: str) -> int:
    """The most jobs of `queue` in one call: 1 without a batch handler."""
    handler = registry.find_handler(queue)
    return 1 if handler is None or handler.batch is None else handler.batch


def calls_of(leases: Sequence[Lease]) -> tuple[list[list[Lease]], int]:
    """Divide `leases` of one queue into calls; returns the calls, and how many leases must run alone.

    A job shares a call only in its first attempt, and only if it has another attempt. So no job loses its last attempt
    to another job of its call, and a job that makes its call fail, or kills its process, runs alone from then on.
    Tasks run alone.
    """
    size = batch_of(leases[0].queue) if leases else 1
    if size == 1:
        return [[lease] for lease in leases], len(leases)
    calls: list[list[Lease]] = []
    shared: list[Lease] = []
    alone = 0
    for lease in leases:
        if lease.task is not None or lease.attempt > 1 or lease.max_attempts < 2:
            calls.append([lease])
            alone += 1
        elif shared and len(shared) < size:
            shared.append(lease)
        else:
            calls.append(shared := [lease])
    return calls, alone


def batch_function(lease: Lease) -> Callable[[list[Lease]], Any] | None:
    """The batch handler that runs `lease`; None when it runs alone."""
    handler = registry.find_handler(lease.queue) if lease.task is None else None
    return None if handler is None or handler.batch is None else handler.func


def call_batch(
    func: Callable[[list[Lease]], Any], attempts: Sequence[Attempt], around: AbstractContextManager[object]
) -> None:
    """Call `func` inside `around`; each attempt gets its result or its error."""
    if not (readable := _readable(attempts)):
        return
    leases = [attempt.lease._replace(payload=readable_payload(attempt.lease.payload)) for attempt in readable]
    contexts = {(attempt.lease.job_id, attempt.lease.fence): attempt.context for attempt in readable}

    def ended(lease: Lease, outcome: RunOutcome) -> None:
        context = contexts.get((lease.job_id, lease.fence))
        if context is not None:
            context.was_settled(lease, outcome)

    try:
        with observe_ends(ended), around:
            # A copy: the function may change the list.
            returned = func(list(leases))
        answers = _answers(returned, leases)
    except BatchErrors as failed:
        answers = _answers(dict.fromkeys((lease.job_id for lease in leases), None) | failed.errors, leases)
    except BaseException as error:
        answers = [error] * len(leases)
        for attempt in readable:
            attempt.shared = len(leases) > 1
    for attempt, answer in zip(readable, answers, strict=True):
        if isinstance(answer, BaseException):
            # Not raised: one error may be the answer for all, and each raise would extend its traceback.
            attempt.error = answer
        else:
            with attempt:
                attempt.returned(answer)


def _readable(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Those whose payload can be read; the others get their error."""
    readable = []
    for attempt in attempts:
        if isinstance(attempt.lease.payload, PayloadError):
            attempt.error = attempt.lease.payload
        else:
            readable.append(attempt)
    return readable


def _answers(returned: object, leases: Sequence[Lease]) -> list[object]:
    """The result of each lease, or the exception with which it failed."""
    if returned is None:
        return [None] * len(leases)
    if isinstance(returned, Mapping):
        strange = set(returned) - {lease.job_id for lease in leases}
        if not strange:
            return [_answer_in(returned, lease.job_id) for lease in leases]
        problem = f"the batch handler answered for {str(strange.pop())[:100]!r}, which is no job of its batch"
    elif isinstance(returned, list | tuple):
        if len(returned) == len(leases):
            return list(returned)
        problem = f"the batch handler returned {len(returned)} results for {len(leases)} jobs"
    else:
        problem = f"the batch handler returned a {type(returned).__name__}"
    return [ResultError(f"{problem}. {_NOT_RETRIED}")] * len(leases)


def _answer_in(returned: Mapping[object, object], job_id: int) -> object:
    answer = returned.get(job_id, _MISSING)
    if answer is _MISSING:
        return ResultError(f"the batch handler returned a dict without job {job_id}. {_NOT_RETRIED}")
    return answer
