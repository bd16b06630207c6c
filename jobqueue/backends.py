"""JobQueueBackend: TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend"}}."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from logging import DEBUG
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core import checks
from django.core.checks.registry import registry as registered
from django.core.exceptions import SynchronousOnlyOperation

from jobqueue.base.compat import AnyTask, BaseTaskBackend, InvalidTask, TaskResult, only_logs, signals, task_backends
from jobqueue.base.payload import JSON, dump
from jobqueue.base.validation import TASK_CHARS, check_instant, check_key, check_queue
from jobqueue.conf import load
from jobqueue.conf.task_spec import UNIQUE_MODES, TaskSpec, columns_of, spec_of
from jobqueue.db.alias import alias_of, configured_alias
from jobqueue.db.callers_transaction import after_commit
from jobqueue.db.clock import read_now
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InsideCoroutine, InvalidType, InvalidValue, UnknownTask, WrongArguments
from jobqueue.producer.enqueueing import add, add_dated, add_many, new_job, with_context
from jobqueue.producer.insert import NewJob
from jobqueue.producer.queue_names import known_queues
from jobqueue.tasks import registry
from jobqueue.tasks.definition import Call, JobTask
from jobqueue.tasks.discovery import misplaced, never_run, warn_if_lost
from jobqueue.tasks.nesting import warn_of_own_copy, warn_of_repeated_delivery
from jobqueue.tasks.options import own_options
from jobqueue.tasks.signature import hashed_key
from jobqueue.tasks.versions import payload_of, unchecked_arguments


class JobQueueBackend(BaseTaskBackend):
    """Django Tasks on the job table. QUEUES: allowed names, [] or absent = any. OPTIONS: DATABASE (alias)."""

    jobqueue_backend = True
    task_class = JobTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, object]) -> None:
        super().__init__(alias, {**params, "QUEUES": params.get("QUEUES") or []})

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        # Django's async methods call the sync ones, so that what a subclass overrides also holds on an event loop.
        for name in ("enqueue", "get_result"):
            if name in vars(cls) and f"a{name}" not in vars(cls):
                setattr(cls, f"a{name}", getattr(BaseTaskBackend, f"a{name}"))

    @property
    def database(self) -> str:
        """The alias of the database that holds the jobs. Raises WrongSettings for one that is not in DATABASES."""
        own = self.options.get("DATABASE")
        return configured_alias(own, f"TASKS[{self.alias!r}]['OPTIONS']['DATABASE']") if own else alias_of(None)

    def validate_task(self, task: AnyTask) -> None:
        """Django's rules, and a queue name that can be stored. Raises InvalidTask."""
        if task.run_after is not None and not isinstance(task.run_after, datetime):
            raise InvalidTask(f"run_after must be an aware datetime, got {type(task.run_after).__name__}.")
        wrong = misplaced(task.func)
        try:
            super().validate_task(task)  # type: ignore[arg-type]
        except InvalidTask as error:
            raise (InvalidTask(f"{error} {wrong}") if wrong else error) from None
        if wrong := wrong or never_run(task.func):
            raise InvalidTask(wrong)
        try:
            check_queue(task.queue_name)
        except (InvalidType, InvalidValue) as error:
            raise InvalidTask(str(error)) from None
        move_to = spec_of(task).move_to
        if move_to is not None and self.queues and move_to not in self.queues:
            raise InvalidTask(
                f"task {task.module_path}: move_to is {move_to!r}, which is not in QUEUES of TASKS[{self.alias!r}] "
                f"({', '.join(sorted(self.queues))}). Add it there, or name one of them."
            )
        if len(task.module_path) > TASK_CHARS:
            raise InvalidTask(f"the path {task.module_path[:60]}... has more than {TASK_CHARS} characters.")

    def enqueue(self, task: AnyTask, args: Sequence[JSON], kwargs: Mapping[str, JSON]) -> TaskResult[JSON]:
        """Insert the job in the caller's transaction on the queue's database; its TaskResult.

        With a dedupe key that is held, the result of the existing job, whoever enqueued it. Raises InvalidTask,
        PayloadError (a TypeError and ValueError), PayloadTooLarge before anything is written.
        """
        prepared = self._prepare(task, args, kwargs)
        try:
            return self._add(*prepared)
        except SynchronousOnlyOperation:
            name = task.func.__name__
            raise InsideCoroutine(f"{name}.enqueue()", f"write: await {name}.aenqueue(...)") from None

    async def aenqueue(self, task: AnyTask, args: Sequence[JSON], kwargs: Mapping[str, JSON]) -> TaskResult[JSON]:
        """enqueue() on an event loop: arguments are checked there, and the INSERT is one call in Django's thread.

        If it is cancelled, CancelledError is raised at once. A call that had begun is completed, so the job is added
        once with its signals, or not at all.
        """
        return await sync_to_async(self._add, thread_sensitive=True)(*self._prepare(task, args, kwargs))

    def enqueue_many(
        self, task: AnyTask, calls: Sequence[Call], *, added: dict[int, NewJob] | None = None
    ) -> list[TaskResult[JSON]]:
        """enqueue() for each call, all or none, with few statements; their TaskResults in order.

        Jobs that are new, and not there already under a dedupe key, are put into `added`.
        """
        prepared = self._prepare_many(task, calls)
        try:
            return self._add_many(task, *prepared, added)
        except SynchronousOnlyOperation:
            name = task.func.__name__
            raise InsideCoroutine(f"{name}.enqueue_many()", f"write: await {name}.aenqueue_many(...)") from None

    async def aenqueue_many(self, task: AnyTask, calls: Sequence[Call]) -> list[TaskResult[JSON]]:
        """enqueue_many() on an event loop, as aenqueue()."""
        return await sync_to_async(self._add_many, thread_sensitive=True)(task, *self._prepare_many(task, calls))

    def get_result(self, result_id: str) -> TaskResult[JSON]:
        """The current TaskResult. Raises TaskResultDoesNotExist, also for ids that are not ours."""
        from jobqueue.tasks.results import id_of, load_result

        return load_result(id_of(result_id), alias=self.alias, using=self.database)

    async def aget_result(self, result_id: str) -> TaskResult[JSON]:
        """get_result() on an event loop: a malformed id is refused there, the read is one call in Django's thread."""
        from jobqueue.tasks.results import id_of, load_result

        load = sync_to_async(load_result, thread_sensitive=True)
        return await load(id_of(result_id), alias=self.alias, using=self.database)

    def check(self, **kwargs: object) -> Iterable[checks.CheckMessage]:
        """E020: the app is not installed."""
        if not apps.is_installed("jobqueue"):
            yield checks.Error(
                f"TASKS[{self.alias!r}] uses JobQueueBackend, but 'jobqueue' is not in INSTALLED_APPS.",
                hint='Add "jobqueue" to INSTALLED_APPS and run migrate.',
                id="jobqueue.E020",
            )

    def template(self, task: AnyTask, args: Sequence[JSON], kwargs: Mapping[str, JSON]) -> NewJob:
        """The job that enqueue() would add now, without expires_at: what schedules add. Raises as enqueue()."""
        return self._prepare(task, args, kwargs)[2]

    def edited(
        self, task: JobTask[..., Any], payload: JSON, given: Mapping[str, Any], *, mode: int, seconds: float | None
    ) -> tuple[Encoded, Mapping[str, bytes | None], Mapping[str, bytes | None]]:
        """The payload and the keys of a job whose args, kwargs or both are `given`, and the keys of its own arguments.

        `payload` is its own, `mode` and `seconds` are its columns about uniqueness. Keys are by their columns, {} if
        those of `payload` cannot be told. Raises as enqueue(), and InvalidValue if one of the two is to stay and cannot
        be read.
        """
        names: dict[int, Any] = {number: name for name, number in UNIQUE_MODES.items()}
        like = task.using(unique=names.get(mode), unique_seconds=seconds)
        known: dict[str, Any] = {}
        try:
            known = dict(zip(ARGUMENTS, unchecked_arguments(task, payload), strict=True))
        except (UnknownTask, WrongArguments) as error:
            if given.keys() != {*ARGUMENTS}:
                raise InvalidValue(
                    f"the arguments that the job has cannot be read ({error}). Nothing was written; give both args and "
                    "kwargs."
                ) from None
        new = payload_of(like, **(known | dict(given)))
        text = Encoded(dump(new, max_bytes=load().max_payload_bytes))
        try:
            old = _keys(like, payload_of(like, **known)) if known else {}
        except Exception:
            # The function of a key may raise anything for arguments that are to be corrected.
            old = {}
        return text, _keys(like, new), old

    def _prepare(
        self, task: AnyTask, args: Sequence[JSON], kwargs: Mapping[str, JSON]
    ) -> tuple[AnyTask, dict[str, JSON], NewJob]:
        """All that needs no database: every refusal happens here."""
        ((payload,), (job,)) = self._prepare_many(task, [Call(args, kwargs)])
        return task, payload, job

    def _prepare_many(self, task: AnyTask, calls: Sequence[Call]) -> tuple[list[dict[str, JSON]], list[NewJob]]:
        """The payload and the job of each call; what the calls share is done once."""
        shared = self._shared(task)
        payloads = [payload_of(task, args, kwargs) for args, kwargs in calls]
        if not payloads:
            return [], []
        jobs = _jobs(task, shared, payloads)
        for payload in payloads:
            warn_of_own_copy(task, payload)
        warn_of_repeated_delivery(task, keyed=all(job.dedupe_key is not None for job in jobs))
        warn_if_lost(task)
        return payloads, jobs

    def _add(self, task: AnyTask, payload: dict[str, JSON], job: NewJob) -> TaskResult[JSON]:
        """Insert the job and send the signal in one thread, so that cancelling the caller cannot lose the signal."""
        # Models are imported late: @task makes a backend before the app registry is ready.
        from jobqueue.tasks.results import holding_result, new_result, unread_result

        (job,) = with_context([job])
        if (expires := spec_of(task).expiry) is not None:
            job = replace(job, expires_at=self._expires_at(expires, job.run_at))
        using, created_at, added = self.database, None, dict[int, NewJob]()
        if job.dedupe_key is None:
            job_id, created_at = add_dated(job, using=using)
        else:
            job_id = add(job, using=using, added=added)
        if created_at is not None:
            result = new_result(job_id, created_at, task, payload, alias=self.alias)
        elif job.dedupe_key is None or job_id in added:
            result = unread_result(job_id, task, payload, alias=self.alias, using=using)
        else:
            result = holding_result(job_id, task, payload, alias=self.alias, using=using)
        self._announce([result])
        return result

    def _announce(self, results: Sequence[TaskResult[JSON]]) -> None:
        # So that a transaction with many enqueues keeps nothing for its commit, if nobody listens.
        if only_logs(signals.task_enqueued, signals.log_task_enqueued) and not signals.logger.isEnabledFor(DEBUG):
            return
        for result in results:
            after_commit(partial(signals.task_enqueued.send, type(self), task_result=result), self.database)

    def _add_many(
        self,
        task: AnyTask,
        payloads: Sequence[dict[str, JSON]],
        jobs: Sequence[NewJob],
        added: dict[int, NewJob] | None = None,
    ) -> list[TaskResult[JSON]]:
        from jobqueue.tasks.results import results_of

        jobs = with_context(jobs)
        if jobs and (expires := spec_of(task).expiry) is not None:
            until = self._expires_at(expires, jobs[0].run_at)
            jobs = [replace(job, expires_at=until) for job in jobs]
        added = {} if added is None else added
        ids = add_many(jobs, using=self.database, added=added)
        results = results_of(ids, payloads, added, task, alias=self.alias, using=self.database)
        self._announce(results)
        return results

    def _shared(self, task: AnyTask) -> _Shared:
        """What the jobs of `task` have in common: made again when something that it depends on has changed."""
        of = (type(self), self.alias, self.queues, load(), known_queues(), registry.find_task(task.module_path))
        found = _shared.get(id(task))
        if found is not None and found.task is task and found.of == of:
            return found
        self.validate_task(task)
        if of[-1] is None:
            # A task of another backend, enqueued here with using(): only our task class registers itself.
            registry.add_task(task.module_path, task)
        made = _Shared(task, (*of[:-1], registry.find_task(task.module_path)), _make(task), _has_keys(spec_of(task)))
        if task.run_after is None:  # else it is for one call, and its instant may be in the zone of the settings
            if len(_shared) >= _SHARED_MAX:
                _shared.clear()
            _shared[id(task)] = made
        return made

    def _expires_at(self, expires: float | datetime, run_at: datetime | None) -> datetime:
        if isinstance(expires, datetime):
            return expires
        now = retry_transient("enqueue", partial(read_now, self.database), using=self.database)
        after = timedelta(seconds=expires)
        try:
            return check_instant(max(now, run_at or now) + after, "expires")
        except OverflowError:
            raise InvalidValue(
                f"expires is {after} after the job is due, beyond the year 9998. Nothing was written."
            ) from None


class _Shared(NamedTuple):
    """What the jobs of a task have in common."""

    task: AnyTask  # kept, so that its id() stays its own
    of: tuple[object, ...]  # what else it was made of
    make: Callable[..., NewJob]  # from a payload and the keys
    has_keys: bool


_SHARED_MAX = 1000
#: by the id() of the task: the same tasks are enqueued again and again
_shared: dict[int, _Shared] = {}


def _make(task: AnyTask) -> Callable[..., NewJob]:
    spec = spec_of(task)
    job = new_job(task.queue_name, Encoded("{}"), priority=int(task.priority), run_at=_aware(task.run_after))
    own = own_options(task, job.run_at)
    return replace(job, task=task.module_path, options=own, **columns_of(spec)).maker()


def _jobs(task: AnyTask, shared: _Shared, payloads: Sequence[dict[str, JSON]]) -> list[NewJob]:
    most = load().max_payload_bytes
    texts = [Encoded(dump(payload, max_bytes=most)) for payload in payloads]
    if not shared.has_keys:
        return [shared.make(payload=text) for text in texts]
    return [shared.make(payload=text, **_keys(task, own)) for text, own in zip(texts, payloads, strict=True)]


ARGUMENTS = ("args", "kwargs")
_KEYS = ("dedupe_key", "ordering_key", "concurrency_key")


def _has_keys(spec: TaskSpec) -> bool:
    return _hashes(spec) or any(getattr(spec, name) is not None for name in _KEYS)


def _keys(task: AnyTask, payload: dict[str, JSON]) -> dict[str, Any]:
    """The keys of one job."""
    keys = {name: _key(task, name, payload) for name in _KEYS}
    return keys | {"dedupe_key": hashed_key(task, payload)} if _hashes(spec_of(task)) else keys


def _hashes(spec: TaskSpec) -> bool:
    """Return whether a hash of the arguments is the key of a job for which the task gives none."""
    return (spec.unique is not None or spec.unique_seconds is not None) and spec.dedupe_key is None


def _key(task: AnyTask, name: str, payload: dict[str, JSON]) -> bytes | None:
    key = getattr(spec_of(task), name)
    if callable(key):
        try:
            key = key(*payload["args"], **payload["kwargs"])
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside the function
            raise InvalidType(
                f"the {name} of {task.module_path} is a function that cannot be called with the task's arguments "
                f"({error}). Nothing was written; it is called with the arguments that enqueue() gets."
            ) from error
    return None if key is None else check_key(key, name)


def _aware(run_after: datetime | None) -> datetime | None:
    # With USE_TZ=False Django Tasks accepts naive datetimes, in the project's zone.
    from django.conf import settings
    from django.utils import timezone

    if run_after is not None and not settings.USE_TZ and timezone.is_naive(run_after):
        return timezone.make_aware(run_after)
    return run_after


def check_installed(app_configs: object = None, **kwargs: object) -> list[checks.CheckMessage]:
    """E020, where Django Tasks does not run the checks of its backends: the app django_tasks is not installed."""
    if any(getattr(check, "__name__", "") == "check_tasks" for check in registered.registered_checks):
        return []
    made = task_backends.all(initialized_only=True)
    return [problem for backend in made if isinstance(backend, JobQueueBackend) for problem in backend.check()]


# Here and not in the app's ready(), which does not run if the app is not installed.
checks.register(check_installed, "jobqueue")
