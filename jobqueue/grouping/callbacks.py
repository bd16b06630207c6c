"""Callbacks: checked and stored as jobs where the group is made, so that any process can add them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from jobqueue.compat import AnyTask
from jobqueue.conf.task_spec import spec_of
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidType, InvalidValue, JobQueueError, WrongDatabase
from jobqueue.failures.text import summary
from jobqueue.grouping.marks import CALLBACK, marked
from jobqueue.models import JobGroup
from jobqueue.payload import JSON
from jobqueue.producer.insert import NewJob
from jobqueue.producer.stored import from_json, job_from_json, job_to_json, to_json

SUCCESS, FAILURE, DONE = "on_success", "on_failure", "on_done"


def template(task: AnyTask, args: Any, kwargs: Any, using: str) -> NewJob:
    """The job of a task for a group in the database `using`, not written yet. Raises what enqueue() raises.

    Also InvalidType for a task of another backend, and WrongDatabase for one whose jobs are in another database.
    """
    return dated(undated(task, args, kwargs, using), task, using)


def dated(job: NewJob, task: AnyTask, using: str) -> NewJob:
    """A job that undated() gave, with the time after which it does not start, by the database's clock."""
    expires = spec_of(task).expiry
    return job if expires is None else replace(job, expires_at=_instant(expires, job.run_at, using))


def undated(task: AnyTask, args: Any, kwargs: Any, using: str) -> NewJob:
    """template() without expires_at; reads nothing."""
    get_backend = getattr(task, "get_backend", None)
    backend: Any = get_backend() if callable(get_backend) else None
    if not getattr(backend, "jobqueue_backend", False):
        name = getattr(task, "module_path", None) or repr(task)[:80]
        raise InvalidType(
            f"{name} is not a task of a backend of jobqueue. Nothing was written; give one made by @task."
        )
    if backend.database != using:
        raise WrongDatabase(
            f"the jobs of {task.module_path} are in the database {backend.database!r}, and the group is in {using!r}: "
            "no transaction spans both. Nothing was written; give the group the database of its tasks with using=."
        )
    job: NewJob = backend.template(task, args, kwargs)
    return job


def stored(callbacks: Mapping[str, AnyTask | None], using: str) -> JSON:
    """The callbacks of a group as JSON; None if there are none. Raises what template() raises."""
    return {name: _stored(name, task, using) for name, task in callbacks.items() if task is not None} or None


def _stored(name: str, task: AnyTask, using: str) -> JSON:
    try:
        job = undated(task, [], {}, using)
    except WrongDatabase:
        raise
    except JobQueueError as error:
        raise InvalidValue(f"{name} cannot be a callback, which is enqueued without arguments: {error}") from error
    if job.dedupe_key is not None:
        raise InvalidValue(
            f"{name} has a dedupe key, so it might not be enqueued. Nothing was written; a callback is enqueued once."
        )
    return {"job": job_to_json(job), "expires": to_json(spec_of(task).expiry)}


def _instant(expires: float | datetime | None, run_at: datetime | None, using: str) -> datetime | None:
    if not isinstance(expires, float):
        return expires
    now = read_now(using)
    return max(now, run_at or now) + timedelta(seconds=expires)


def jobs_of(group: JobGroup, *, succeeded: bool, using: str) -> dict[str, NewJob]:
    """The callbacks to add when a group ends, by their names. Raises InvalidValue if this version cannot read one."""
    callbacks: Any = group.callbacks or {}
    jobs = {}
    for name in (SUCCESS if succeeded else FAILURE, DONE):
        try:
            found = callbacks.get(name)
            if found is None:
                continue
            job, expires = job_from_json(found["job"]), from_json(found["expires"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidValue(f"this version cannot read its {name} ({summary(error)})") from error
        job = replace(job, expires_at=_instant(expires, job.run_at, using))
        jobs[name] = marked(job, CALLBACK, group.pk)
    return jobs


def with_jobs(callbacks: JSON, added: Mapping[str, int]) -> JSON:
    """The stored callbacks with the ids of the jobs that were added; a workflow that is resumed adds others."""
    found: Any = callbacks
    return found | {name: {**found[name], "jobs": [*_added(found[name]), job_id]} for name, job_id in added.items()}


def added_jobs(callbacks: JSON) -> list[int]:
    """The ids of the callbacks that were added at the ends of a group."""
    return [job_id for one in callbacks.values() for job_id in _added(one)] if isinstance(callbacks, dict) else []


def _added(callback: Any) -> list[int]:
    return list(callback.get("jobs", ())) if isinstance(callback, dict) else []
