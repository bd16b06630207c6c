"""What the system checks and workers find wrong with the setting TASKS and with the retry policies of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.conf import settings

from jobqueue.backoff import least_wait
from jobqueue.base.validation import check_queue, did_you_mean
from jobqueue.conf import Settings
from jobqueue.conf.known_tasks import all_tasks
from jobqueue.conf.task_spec import spec_of, too_few, too_late
from jobqueue.db import Problem
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.failures.nested import wrapped_tries
from jobqueue.producer.queue_names import is_ours

_BACKEND = "jobqueue.backends.JobQueueBackend"


def policy_problems(settings: Settings) -> Iterator[Problem]:
    """E022: the policy of a task cannot work with the settings that hold where the task gives no value."""
    for task in all_tasks():
        spec, most = spec_of(task), settings.queue_max_attempts(task.queue_name)
        if spec.move_after is not None and spec.max_attempts is None and spec.move_after >= most:
            yield Problem(
                "E022",
                f"task {task.module_path}: {too_few(spec.move_after, most)} by JOBQUEUE.",
                "Lower move_after, or give the task a larger max_attempts.",
            )
        limit, least = spec.retry_until_seconds, least_wait(settings.backoff)
        if limit is not None and spec.backoff is None and least > limit:
            yield Problem(
                "E022",
                f"task {task.module_path}: {too_late(limit, least)} by JOBQUEUE.",
                "Raise retry_until_seconds, or give the task a backoff.",
            )


def nesting_problems(settings: Settings) -> Iterator[Problem]:
    """W031: a library repeats the calls of a task. W032: a task names a dependency that has no settings."""
    known = settings.dependencies
    for task in all_tasks():
        spec = spec_of(task)
        if (wrapped := wrapped_tries(task.func)) is not None:
            yield _nested(task.module_path, *wrapped, spec.max_attempts or settings.queue_max_attempts(task.queue_name))
        name = spec.dependency
        if name is not None and known and name not in known:
            yield Problem(
                "W032",
                f"task {task.module_path} has the dependency {name!r}, which DEPENDENCIES of JOBQUEUE lacks"
                f"{did_you_mean(name, known)}: it has the default limits.",
                f"Correct the name, or add {name!r}: {{}} to DEPENDENCIES.",
            )


def _nested(path: str, library: str, tries: int | None, attempts: int) -> Problem:
    if tries is None:
        much = f"each of its {attempts} attempts repeats the call until {library} gives up"
    else:
        much = f"{attempts} attempts x {tries} tries are up to {attempts * tries} calls"
    return Problem(
        "W031",
        f"retries are nested: {library} repeats task {path} inside each attempt, {much}.",
        f"Let one layer retry: remove {library} from the task, or set max_attempts=1.",
    )


def unused_problem() -> Problem | None:
    """W028: no backend in TASKS is ours, so tasks do not become jobs."""
    backends = getattr(settings, "TASKS", None) or {}
    if any(map(is_ours, backends.values())):
        return None
    # From Django 6.0 on there is a default. The stubs of Django do not know the method.
    if not settings.is_overridden("TASKS"):  # type: ignore[misc]
        backends = {}
    named = {alias: str(params.get("BACKEND")) for alias, params in backends.items()}
    found = ", ".join(f"{alias}: {path}{did_you_mean(path, [_BACKEND])}" for alias, path in named.items())
    text = f"no backend in TASKS is jobqueue's ({found})" if found else "TASKS is not set"
    return Problem(
        "W028",
        f"jobqueue is installed, but {text}. So enqueue() of a task adds no job that a worker could run: Django's "
        "ImmediateBackend, the default, runs the task inside the calling process.",
        f'Set TASKS = {{"default": {{"BACKEND": "{_BACKEND}"}}}}. If you use jobqueue without tasks, add '
        '"jobqueue.W028" to SILENCED_SYSTEM_CHECKS.',
    )


def entry_problems() -> Iterator[Problem]:
    """E021: wrong values in those entries of TASKS that are ours."""
    backends: Mapping[str, Mapping[str, Any]] = getattr(settings, "TASKS", None) or {}
    for alias, params in backends.items():
        if is_ours(params):
            options: Mapping[str, Any] = params.get("OPTIONS") or {}
            # A subclass may have keys and options of its own.
            if params["BACKEND"] == _BACKEND:
                yield from _unknown(f"TASKS[{alias!r}]", params, ["BACKEND", "QUEUES", "OPTIONS"])
                yield from _unknown(f"TASKS[{alias!r}]['OPTIONS']", options, ["DATABASE"])
            yield from _database(f"TASKS[{alias!r}]['OPTIONS']", options.get("DATABASE"))
            yield from _queues(f"TASKS[{alias!r}]['QUEUES']", params.get("QUEUES") or ())


def _unknown(where: str, given: Mapping[str, Any], known: Sequence[str]) -> Iterator[Problem]:
    for key in given:
        if key not in known:
            near = f" (it belongs in {where}['OPTIONS'])" if key == "DATABASE" else did_you_mean(key, known)
            text = f"{where} has the unknown key {key!r}{near}."
            yield Problem("E021", text, f"Known are {', '.join(known)}; other settings are in JOBQUEUE.")


def _database(where: str, database: object) -> Iterator[Problem]:
    if database and database not in settings.DATABASES:
        hint = f"Choose one of {', '.join(sorted(settings.DATABASES))}."
        yield Problem("E021", f"{where}['DATABASE'] = {database!r} is not in DATABASES.", hint)


def _queues(where: str, queues: Any) -> Iterator[Problem]:
    if isinstance(queues, str):
        yield Problem("E021", f"{where} must be a list of names, is {queues!r}.", f"Write [{queues!r}].")
        return
    for queue in queues:
        try:
            check_queue(queue)
        except (InvalidType, InvalidValue) as error:
            yield Problem("E021", f"{where}: {str(error).partition('. Nothing')[0]}.", "Correct the name.")
