"""Several leases in one call: which go together, the call of a @handler(batch=...), what it answers for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jobqueue.exceptions import BatchErrors, PayloadError, ResultError
from jobqueue.tasks import registry
from jobqueue.transitions import Lease
from jobqueue.transitions.ack_observers import observe_acks
from jobqueue.worker.run.perform import Attempt, Outcome, Run, perform, perform_within
from jobqueue.worker.run.timeouts import limits_of
from jobqueue.worker.shared.cleanup import clean_connections

_MISSING = object()
_NOT_RETRIED = (
    "Its effects have happened, so the job is not retried. A batch handler returns None, a list with one result for "
    "each lease in their order, or a dict of results by job id."
)


def batch_of(queue: str) -> int:
    """How many jobs of `queue` one call takes at most: 1 where there is no batch handler."""
    handler = registry.find_handler(queue)
    return 1 if handler is None or handler.batch is None else handler.batch


def calls_of(leases: Sequence[Lease]) -> tuple[list[list[Lease]], int]:
    """`leases` of one queue as they are to run, each list in one call; and how many may not share theirs.

    A job shares a call in its first attempt and if it has another one: whatever the others in it do, no job loses its
    last attempt to them, and one that makes its call fail or kills its process is alone from then on. Tasks run alone.
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


def perform_call(leases: Sequence[Lease], run: Run) -> list[Outcome]:
    """Run `leases`, one of the calls of calls_of(), in this thread; the outcome of each, in their order."""
    func = _batch_function(leases[0])
    if func is None:
        return [perform(leases[0], run)]
    attempts = [Attempt(lease, run.asked_to_stop) for lease in leases]
    try:
        _call(func, attempts, run.watch.limited(limits_of(None), run.slot))
    finally:
        clean_connections()
    return [attempt.outcome(run.context, coroutine=False) for attempt in attempts]


def perform_call_within(leases: Sequence[Lease], surroundings: AbstractContextManager[object]) -> list[Outcome]:
    """perform_call() for jobqueue.testing: inside `surroundings`, as perform_within()."""
    func = _batch_function(leases[0])
    if func is None:
        return [perform_within(leases[0], surroundings)]
    attempts = [Attempt(lease, lambda: False) for lease in leases]
    _call(func, attempts, surroundings)
    return [attempt.outcome(None, coroutine=False) for attempt in attempts]


def _batch_function(lease: Lease) -> Callable[[list[Lease]], Any] | None:
    handler = registry.find_handler(lease.queue) if lease.task is None else None
    return None if handler is None or handler.batch is None else handler.func


def _call(func: Callable[[list[Lease]], Any], attempts: Sequence[Attempt], around: AbstractContextManager[Any]) -> None:
    """Call `func` within `around`; give each attempt its result or its error."""
    readable = []
    for attempt in attempts:
        if isinstance(attempt.lease.payload, PayloadError):
            attempt.error = attempt.lease.payload
        else:
            readable.append(attempt)
    if not readable:
        return
    leases = [attempt.lease for attempt in readable]
    contexts = {(attempt.lease.job_id, attempt.lease.fence): attempt.context for attempt in readable}

    def acked(lease: Lease) -> None:
        context = contexts.get((lease.job_id, lease.fence))
        if context is not None:
            context.finished = True

    try:
        with observe_acks(acked), around:
            # A list of its own: whatever the function does to it, the answers are for these leases.
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
            # Not raised: one error may be the answer for all, and would grow a traceback for each.
            attempt.error = answer
        else:
            with attempt:
                attempt.returned(answer)


def _answers(returned: Any, leases: Sequence[Lease]) -> list[Any]:
    """For each lease its result, or the exception that it failed with."""
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


def _answer_in(returned: Mapping[Any, Any], job_id: int) -> Any:
    answer = returned.get(job_id, _MISSING)
    if answer is _MISSING:
        return ResultError(f"the batch handler returned a dict without job {job_id}. {_NOT_RETRIED}")
    return answer
