"""What `check` finds in the retry policies of tasks: those that cannot work, and those that libraries multiply."""

from __future__ import annotations

from collections.abc import Iterator

from jobqueue.backoff import least_wait
from jobqueue.conf import Settings
from jobqueue.conf.known_tasks import all_tasks
from jobqueue.conf.task_spec import spec_of, too_few, too_late
from jobqueue.db import Problem
from jobqueue.failures.nested import wrapped_tries
from jobqueue.validation import did_you_mean


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
