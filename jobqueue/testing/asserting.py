"""Assertions about what was enqueued."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON, normalized
from jobqueue.base.validation import check_instant, check_key
from jobqueue.db.alias import alias_of
from jobqueue.exceptions import InvalidType
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet

_SHOWN = 20
_ANY: JSON = object()


def assert_enqueued(
    what: AnyTask | str | None = None,
    *,
    args: Sequence[JSON] | None = None,
    kwargs: Mapping[str, JSON] | None = None,
    payload: JSON = _ANY,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    dedupe_key: str | bytes | None = None,
    status: Job.Status | None = None,
    count: int | None = None,
    using: str | None = None,
) -> list[Job]:
    """Return the jobs that match, in the order they were added. AssertionError if there are none, or not `count`.

    `what` is a task or the name of a queue. `args`, `kwargs` and `payload` are compared as whole JSON values. Jobs
    match in any state, also after they have run, unless `status` is given. The error lists all jobs.
    """
    __tracebackhide__ = True
    alias = alias_of(using)
    rows, conditions = _matching(alias, what, queue, priority, run_at, dedupe_key, status)
    found = [job for job in rows if _fits(job, args, kwargs, payload)]
    content = {name: value for name, value in (("args", args), ("kwargs", kwargs)) if value is not None}
    content |= {} if payload is _ANY else {"payload": payload}
    conditions += [f"{name}={_json(value)}" for name, value in content.items()]
    if (not found) if count is None else len(found) != count:
        wanted = "at least one job" if count is None else f"{count} jobs"
        which = "with " + ", ".join(conditions) if conditions else "of any kind"
        raise AssertionError(f"{wanted} expected {which}; found {len(found)}.\n{_table(alias)}")
    return found


def refute_enqueued(
    what: AnyTask | str | None = None,
    *,
    args: Sequence[JSON] | None = None,
    kwargs: Mapping[str, JSON] | None = None,
    payload: JSON = _ANY,
    queue: str | None = None,
    status: Job.Status | None = None,
    using: str | None = None,
) -> None:
    """AssertionError if a job matches. Arguments as for assert_enqueued()."""
    __tracebackhide__ = True
    assert_enqueued(what, args=args, kwargs=kwargs, payload=payload, queue=queue, status=status, count=0, using=using)


def _matching(
    using: str,
    what: AnyTask | str | None,
    queue: str | None,
    priority: int | None,
    run_at: datetime | None,
    dedupe_key: str | bytes | None,
    status: Job.Status | None,
) -> tuple[JobQuerySet, list[str]]:
    rows: JobQuerySet = Job.objects.using(using).order_by("id")
    conditions = []
    if isinstance(what, str):
        queue = what if queue is None else queue
    elif what is not None:
        path = getattr(what, "module_path", None)
        if path is None:
            raise InvalidType(f"the first argument must be a task or the name of a queue, got {type(what).__name__}.")
        rows = rows.filter(task=path)
        conditions.append(path)
    given = {
        "queue": queue,
        "priority": priority,
        "run_at": None if run_at is None else check_instant(run_at),
        "dedupe_key": None if dedupe_key is None else check_key(dedupe_key),
        "status": status,
    }
    given = {name: value for name, value in given.items() if value is not None}
    return rows.filter(**given), conditions + [f"{name}={value!r}" for name, value in given.items()]


def _fits(job: Job, args: Sequence[JSON] | None, kwargs: Mapping[str, JSON] | None, payload: JSON) -> bool:
    if payload is not _ANY and job.payload != normalized(payload, "payload"):
        return False
    stored = job.payload if isinstance(job.payload, dict) else {}
    if args is not None and stored.get("args", []) != normalized(list(args), "args"):
        return False
    return kwargs is None or stored.get("kwargs", {}) == normalized(dict(kwargs), "kwargs")


def _table(using: str) -> str:
    rows = Job.objects.using(using).order_by("id")
    count = rows.count()
    if not count:
        return "The table of jobs is empty."
    lines = [f"  {_line(job)}" for job in rows[:_SHOWN]]
    if count > _SHOWN:
        lines.append(f"  and {count - _SHOWN} more")
    return "\n".join([f"In the table ({count}):", *lines])


def _line(job: Job) -> str:
    state = Job.Status(job.status).name
    key = f" dedupe_key={job.dedupe_key!r}" if job.dedupe_key else ""
    if job.task is None:
        what = f"raw row payload={_json(job.payload)}"
    else:
        stored = job.payload if isinstance(job.payload, dict) else {}
        what = f"{job.task} args={_json(stored.get('args', []))} kwargs={_json(stored.get('kwargs', {}))}"
    return f"job {job.pk}: {what} queue={job.queue} priority={job.priority}{key} run_at={job.run_at:%F %T}Z {state}"


def _json(value: JSON) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 200 else text[:200] + "..."
