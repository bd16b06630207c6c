"""A job as a Django Tasks TaskResult, and the TaskContext of a running one."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from asgiref.sync import SyncToAsync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections
from django.db.models import Max, Min

from jobqueue.base.compat import (
    TASK_REFRESH_ATTRS,
    AnyTask,
    BaseTaskBackend,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
)
from jobqueue.base.durations import to_seconds
from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_id
from jobqueue.context.job_context import JobContext
from jobqueue.context.progress import Progress, read_progress
from jobqueue.db.callers_transaction import in_callers_transaction, in_open_transaction
from jobqueue.db.expressions import Slot
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import (
    DatabaseBusy,
    Discard,
    InsideCoroutine,
    InsideTransaction,
    InvalidType,
    InvalidValue,
    JobCanceled,
    JobExpired,
    JobQueueError,
    WaitTimeout,
)
from jobqueue.failures import FailureCause, describe, dotted_path
from jobqueue.models import Job, JobAttempt
from jobqueue.requested import UNCHARGED
from jobqueue.tasks import registry
from jobqueue.transitions import Lease

logger = logging.getLogger("jobqueue.results")

if TYPE_CHECKING:
    _Base = TaskResult[Any]
else:
    _Base = TaskResult

_STATUS = {
    Job.Status.READY: TaskResultStatus.READY,
    Job.Status.PROCESSING: TaskResultStatus.RUNNING,
    Job.Status.DONE: TaskResultStatus.SUCCESSFUL,
    Job.Status.FAILED: TaskResultStatus.FAILED,
    Job.Status.CANCELED: TaskResultStatus.FAILED,
}
#: between two looks: longer for jobs that take longer
_LEAST_SECONDS, _MOST_SECONDS, _GROWTH = 0.02, 1.0, 1.5
#: ids in one statement
_CHUNK = 500


class _Unread(NamedTuple):
    """Stands for the created_at of a job that the INSERT did not return; `using` is the job's database."""

    using: str


_stored: Any = TaskResult.__dict__["enqueued_at"]


class _Dated(_Base):
    """A TaskResult whose enqueued_at is read when it is asked for, if its INSERT did not return it.

    All of dataclasses, pickle and copy ask for it by its name, so to them it is a field as any other.
    """

    __slots__ = ()

    @property
    def enqueued_at(self) -> datetime | None:
        """When the job was added, by the database's clock. None if it was rolled back, or its row is gone."""
        found = _stored.__get__(self)
        if not isinstance(found, _Unread):
            return found  # type: ignore[no-any-return]
        if connections[found.using].needs_rollback:
            return None
        work = partial(_created_at(found.using).rows, job_id=int(self.id))
        try:
            rows = retry_transient("result", work, using=found.using)
        except SynchronousOnlyOperation:
            raise InsideCoroutine("enqueued_at", "read it in the function that enqueues the job") from None
        if not rows:
            return None
        _stored.__set__(self, rows[0][0])
        return rows[0][0]  # type: ignore[no-any-return]

    @enqueued_at.setter
    def enqueued_at(self, value: datetime | None) -> None:
        _stored.__set__(self, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTaskResult(_Dated):
    """Django's TaskResult, and the progress that the job reported (None: nothing yet)."""

    progress: Progress | None = None

    def refresh(self) -> None:
        """Read the job again."""
        self._copy(self.task.get_backend().get_result(self.id))

    async def arefresh(self) -> None:
        """Read the job again."""
        self._copy(await self.task.get_backend().aget_result(self.id))

    def wait(self, timeout_seconds: float | timedelta | str | None = None) -> Self:
        """Read the job again and again until it has ended; this result, with its state, return_value and errors.

        None waits for ever, 0 looks once. Raises WaitTimeout when the job has not ended after `timeout_seconds`: it
        goes on, and wait() may be called again. Raises InsideTransaction in an open transaction, in which the end could
        not be seen, and InvalidValue, InvalidType.
        """
        wait_for(self, timeout_seconds)
        return self

    def _copy(self, newer: Any) -> None:
        for name in (*TASK_REFRESH_ATTRS, "progress"):
            object.__setattr__(self, name, getattr(newer, name, None))


@cache
def _created_at(using: str) -> Prepared:
    rows = Job.objects.using(using).filter(pk=Slot("job_id", Job._meta.pk))
    return prepare_rows(rows.values_list("created_at"))


def unread_result(job_id: int, task: AnyTask, payload: JSON, *, alias: str, using: str) -> JobTaskResult:
    """new_result() of a job whose created_at the INSERT did not return."""
    result = new_result(job_id, _Unread(using), task, payload, alias=alias)
    loop = getattr(SyncToAsync.threadlocal, "main_event_loop", None)
    if loop is not None and loop.is_running():
        # A coroutine waits for this thread, and could not read it. The job is added: an error must not hide that.
        with suppress(Error, DatabaseBusy):
            _ = result.enqueued_at
    return result


def new_result(
    job_id: int, created_at: datetime | _Unread, task: AnyTask, payload: JSON, *, alias: str
) -> JobTaskResult:
    """The TaskResult of a job that was just added, with a payload that payload_of() has made for it."""
    # Copied, because the constructor walks through the arguments, as long as the rest takes.
    made = object.__new__(JobTaskResult)
    own = {
        "id": str(job_id),
        "task": task,
        "args": payload["args"],
        "kwargs": payload["kwargs"],
        "backend": alias,
        "enqueued_at": created_at,
        "errors": [],
        "worker_ids": [],
    }
    for name, value in (_blank() | own).items():
        object.__setattr__(made, name, value)
    return made


@cache
def _blank() -> dict[str, Any]:
    """The fields of the TaskResult of any new job."""
    made = _result(0, None, None, "", status=TaskResultStatus.READY, enqueued_at=None)
    return {field.name: getattr(made, field.name) for field in fields(made)}


def _result(job_id: int, task: AnyTask | None, payload: JSON, alias: str, **facts: Any) -> JobTaskResult:
    """A TaskResult of which nothing is known but `facts`. Any program may have written the payload."""
    found = payload if isinstance(payload, dict) else {}
    args, kwargs = found.get("args"), found.get("kwargs")
    own: dict[str, Any] = {"started_at": None, "finished_at": None, "last_attempted_at": None, "task": task}
    return JobTaskResult(
        id=str(job_id),
        args=list(args) if isinstance(args, list) else [],
        kwargs=dict(kwargs) if isinstance(kwargs, dict) else {},
        backend=alias,
        **(own | {"errors": [], "worker_ids": []} | facts),
    )


def holding_result(job_id: int, task: AnyTask, payload: JSON, *, alias: str, using: str) -> JobTaskResult:
    """The TaskResult of the job that holds the dedupe key with which `task` was enqueued, new or already there.

    It may be a job of another task or of none; `task` replaces those that this process does not know. A job that cannot
    be read, because of an older snapshot or a database that became unreachable, is shown as a new one.
    """
    try:
        job = retry_transient("result", lambda: Job.objects.using(using).filter(pk=job_id).first(), using=using)
        if job is not None:
            return _with_history(job, (registry.find_task(job.task) if job.task else None) or task, alias, using)
    except (Error, DatabaseBusy) as error:
        if in_callers_transaction(connections[using]):
            raise
        logger.warning("job %d holds the dedupe key but cannot be read: %s", job_id, error)
    return new_result(job_id, datetime.now(UTC), task, payload, alias=alias)


def backend_of(task: AnyTask) -> BaseTaskBackend:
    """The backend of a task's jobs: its own, or the first of ours for a task of another backend."""
    backend = task_backends[task.backend]
    if getattr(backend, "jobqueue_backend", False):
        return backend
    ours = (task_backends[alias] for alias in task_backends)
    return next((found for found in ours if getattr(found, "jobqueue_backend", False)), backend)


def started_result(task: AnyTask, lease: Lease, backend: BaseTaskBackend) -> JobTaskResult:
    """The TaskResult of a run that starts, from its lease alone: without earlier errors."""
    return _result(
        lease.job_id,
        task,
        lease.payload,
        backend.alias,
        status=TaskResultStatus.RUNNING,
        enqueued_at=lease.created_at,
        started_at=lease.locked_at,
        last_attempted_at=lease.locked_at,
        worker_ids=[lease.worker] * lease.attempt,
    )


def failed_result(task: AnyTask | None, lease: Lease, error: BaseException) -> JobTaskResult | None:
    """What a backoff function of (exception, task_result) gets: the last error is that of this attempt."""
    if task is None:
        return None
    result = started_result(task, lease, backend_of(task))
    result.errors.append(TaskError(exception_class_path=dotted_path(type(error)), traceback=describe(error)))
    return result


def id_of(result_id: object) -> int:
    """The job id in a result id. Raises TaskResultDoesNotExist for anything else."""
    try:
        number = check_id(result_id)
    except (InvalidType, InvalidValue):
        raise TaskResultDoesNotExist(f"{str(result_id)[:80]!r} is not a job id") from None
    if number >= 2**63:
        raise TaskResultDoesNotExist(f"there is no job {number}: ids are smaller")
    return number


def load_result(job_id: int, *, alias: str, using: str) -> JobTaskResult:
    """The TaskResult of a task's job. Raises TaskResultDoesNotExist for unknown ids.

    Read again after a lost connection, as that of a process that was idle for longer than the server allows.
    """
    return retry_transient("result", partial(_load_once, job_id, alias, using), using=using)


def _load_once(job_id: int, alias: str, using: str) -> JobTaskResult:
    job = Job.objects.using(using).filter(pk=job_id).first()
    if job is None:
        raise TaskResultDoesNotExist(
            f"there is no job {job_id} in the database {using!r}: its transaction was rolled back or is still open, or "
            "its row was deleted"
        )
    if job.task is None:
        raise TaskResultDoesNotExist(f"job {job_id} is a raw row of the queue {job.queue!r}, which has no task")
    if (task := registry.find_task(job.task)) is None:
        raise TaskResultDoesNotExist(f"job {job_id} is of the task {job.task!r}, which this process has not imported")
    return _with_history(job, task, alias, using)


def _with_history(job: Job, task: AnyTask, alias: str, using: str) -> JobTaskResult:
    history = JobAttempt.objects.using(using).filter(job_id=job.pk).order_by("id")
    history = history.exclude(cause__in=UNCHARGED)
    # A job that has never failed has no history, so reading a new one takes one statement.
    return result_of(job, task, alias, list(history) if job.attempts else [])


def result_of(job: Job, task: AnyTask, alias: str, attempts: Sequence[JobAttempt]) -> JobTaskResult:
    """The TaskResult of a row and its failed attempts, oldest first."""
    workers = [attempt.worker or "" for attempt in attempts]
    if job.status in (Job.Status.PROCESSING, Job.Status.DONE):
        workers.append(job.last_worker or job.locked_by or "")
    first = attempts[0].started_at if attempts else job.last_started_at
    result = _result(
        job.pk,
        task,
        job.payload,
        alias,
        status=_STATUS[Job.Status(job.status)],
        enqueued_at=job.created_at,
        started_at=first,
        finished_at=job.finished_at,
        last_attempted_at=job.last_started_at,
        errors=_errors(job, attempts),
        worker_ids=workers,
        progress=read_progress(job.progress),
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


def _errors(job: Job, attempts: Sequence[JobAttempt]) -> list[TaskError]:
    unknown = dotted_path(JobQueueError)
    errors = [TaskError(exception_class_path=a.error_class or unknown, traceback=a.error) for a in attempts]
    if job.status == Job.Status.CANCELED and job.cause == FailureCause.EXPIRED:
        errors.append(TaskError(exception_class_path=dotted_path(JobExpired), traceback=job.last_error or ""))
    elif job.status == Job.Status.CANCELED and job.cause is None and job.last_error:
        errors.append(TaskError(exception_class_path=dotted_path(Discard), traceback=job.last_error))
    elif job.status == Job.Status.CANCELED:
        errors.append(TaskError(exception_class_path=dotted_path(JobCanceled), traceback="The job was canceled."))
    elif job.status == Job.Status.FAILED and not errors:
        errors.append(TaskError(exception_class_path=unknown, traceback=job.last_error or ""))
    return errors


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTaskContext(TaskContext):
    """Django's TaskContext (task_result, attempt) with all attributes of JobContext."""

    job: JobContext

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self.job.attempt

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "job":
            raise AttributeError(name)
        return getattr(self.job, name)


def task_context(task: AnyTask, lease: Lease, context: JobContext) -> JobTaskContext:
    """The context of a running task; its TaskResult is RUNNING and has no earlier errors."""
    return JobTaskContext(task_result=started_result(task, lease, backend_of(task)), job=context)


def wait_for(result: Any, timeout_seconds: float | timedelta | str | None) -> None:
    """Refresh `result` until its job has ended. Raises WaitTimeout, InsideTransaction, InvalidValue, InvalidType."""
    limit = None if timeout_seconds is None else to_seconds(timeout_seconds, "timeout_seconds", zero=True)
    # Not time.monotonic(), which libraries stop that freeze the clock in tests: the wait would never end.
    until, pause = None if limit is None else time.clock_gettime(time.CLOCK_MONOTONIC) + limit, _LEAST_SECONDS
    while True:
        result.refresh()
        if result.is_finished:
            return
        using = result.task.get_backend().database
        if in_open_transaction(using):
            raise InsideTransaction(
                f"wait() was called inside a transaction on {using!r}: job {result.id} has not ended, and its end "
                "could not be seen there. Nothing was written; wait after the commit."
            )
        left = _MOST_SECONDS if until is None else until - time.clock_gettime(time.CLOCK_MONOTONIC)
        if left <= 0:
            raise WaitTimeout(
                f"job {result.id} has not ended after {limit:g} s: it is {result.status}. It goes on; wait again, or "
                "cancel it."
            )
        time.sleep(min(pause, left))
        pause = min(pause * _GROWTH, _MOST_SECONDS)


def results_of(
    ids: Sequence[int],
    payloads: Sequence[JSON],
    added: Container[int],
    task: AnyTask,
    *,
    alias: str,
    using: str,
) -> list[TaskResult[Any]]:
    """The results of the jobs of `ids`: new ones for those in `added`, others as they are in the database.

    The jobs are there already, so one that cannot be read is shown as a new one.
    """
    held = {job_id for job_id in ids if job_id not in added}
    found: dict[int, TaskResult[Any]] = {}
    created: dict[int, datetime] = {}
    try:
        if held:
            found = retry_transient("result", partial(_existing, held, task, alias, using), using=using)
        created = retry_transient("result", partial(_created, [i for i in ids if i in added], using), using=using)
    except (Error, DatabaseBusy) as error:
        if in_callers_transaction(connections[using]):
            raise
        logger.warning("%d jobs were enqueued but cannot be read: %s", len(ids), error)
    now = datetime.now(UTC)
    return [
        found.get(job_id) or new_result(job_id, created.get(job_id, now), task, payload, alias=alias)
        for job_id, payload in zip(ids, payloads, strict=True)
    ]


def _created(ids: Sequence[int], using: str) -> dict[int, datetime]:
    """When new jobs were created. One statement gives all its rows the same instant."""
    if not ids:
        return {}
    # By ranges of ids: to read each row would take as long as to insert it.
    rows = Job.objects.using(using).filter(pk__gte=min(ids), pk__lte=max(ids)).order_by()
    by_instant = rows.values("created_at").annotate(low=Min("pk"), high=Max("pk"))
    ranges = sorted(by_instant.values_list("low", "high", "created_at"))
    if all(before[1] < after[0] for before, after in pairwise(ranges)):
        lows = [low for low, _, _ in ranges]
        return {job_id: ranges[bisect_right(lows, job_id) - 1][2] for job_id in ids} if ranges else {}
    # Jobs of other transactions lie between these.
    found: dict[int, datetime] = {}
    for part in _parts(ids):
        found.update(Job.objects.using(using).filter(pk__in=part).values_list("pk", "created_at"))
    return found


def _existing(ids: Iterable[int], task: AnyTask, alias: str, using: str) -> dict[int, TaskResult[Any]]:
    found: dict[int, TaskResult[Any]] = {}
    for part in _parts(sorted(ids)):
        jobs = list(Job.objects.using(using).filter(pk__in=part))
        attempts: dict[int, list[JobAttempt]] = defaultdict(list)
        if failed := [job.pk for job in jobs if job.attempts]:
            history = JobAttempt.objects.using(using).filter(job_id__in=failed).order_by("id")
            for attempt in history.exclude(cause__in=UNCHARGED):
                attempts[attempt.job_id].append(attempt)
        for job in jobs:
            own = (registry.find_task(job.task) if job.task else None) or task
            found[job.pk] = result_of(job, own, alias, attempts[job.pk])
    return found


def _parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[begin : begin + _CHUNK] for begin in range(0, len(ids), _CHUNK))
