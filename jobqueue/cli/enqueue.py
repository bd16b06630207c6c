"""The sub-command enqueue: add a job of a registered task, as its code does."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any

from jobqueue.backends import JobQueueBackend
from jobqueue.cli.arguments import duration
from jobqueue.cli.audited import audit_jobs
from jobqueue.cli.output import Result, Subcommand
from jobqueue.compat import InvalidTask
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidValue
from jobqueue.producer.insert import NewJob
from jobqueue.tasks import registry
from jobqueue.tasks.definition import Call, JobTask
from jobqueue.validation import did_you_mean


def _declare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("task", metavar="TASK", help="the path of a task, such as orders.tasks.send_receipt")
    # Django takes "args" out of the options of a command.
    add("--args", type=_list, default=[], dest="task_args", metavar="JSON", help="positional arguments: '[42, \"a\"]'")
    add(
        "--kwargs", type=_object, default={}, dest="task_kwargs", metavar="JSON", help="keyword arguments: '{\"n\": 1}'"
    )
    add("--queue", default=None, metavar="NAME", help="default: the queue of the task")
    when = parser.add_mutually_exclusive_group().add_argument
    when("--in", type=duration, default=None, metavar="TIME", help="it is due after this time, such as 10m")
    when("--at", type=_instant, default=None, metavar="WHEN", help="it is due then: 2026-01-31T18:00+09:00")
    add("--key", default=None, metavar="KEY", help="its dedupe key, in place of that of the task")
    add("--priority", type=int, default=None, metavar="N", help="larger numbers run first (default: that of the task)")


def _enqueue(using: str, given: dict[str, Any]) -> Result:
    task = _task(given["task"])
    _check_database(task, given)
    try:
        chosen = task.using(
            queue_name=given["queue"], dedupe_key=given["key"], priority=given["priority"], run_after=_due(task, given)
        )
        # Of a dedupe key that is held, none is added.
        added: dict[int, NewJob] = {}
        calls = [Call(given["task_args"], given["task_kwargs"])]
        (result,) = _backend_of(task).enqueue_many(chosen, calls, added=added)
    except InvalidTask as error:
        raise InvalidValue(f"{error} Nothing was written.") from None
    if added:
        audit_jobs("enqueue", [int(result.id)], using=_database_of(task))
        said = f"job {result.id} of task {chosen.module_path} was added to queue {chosen.queue_name}"
    else:
        said = f"job {result.id} holds the dedupe key in queue {chosen.queue_name}; no job was added"
    facts = {"id": int(result.id), "added": bool(added), "task": chosen.module_path, "queue": chosen.queue_name}
    return Result(facts, [said])


def _list(text: str) -> list[Any]:
    found = _json(text)
    if not isinstance(found, list):
        raise ArgumentTypeError(f"{text[:80]!r} is not a JSON list such as '[42, \"a\"]'. Nothing was written.")
    return found


def _object(text: str) -> dict[str, Any]:
    found = _json(text)
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text[:80]!r} is not a JSON object such as '{{\"n\": 1}}'. Nothing was written.")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"{text[:80]!r} is not JSON: {error}. Nothing was written.") from None


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        found = None
    if found is None or found.utcoffset() is None:
        raise ArgumentTypeError(
            f"{text[:40]!r} is not a time with a UTC offset, such as 2026-01-31T18:00+09:00. Nothing was "
            "written; --in takes a time from now."
        )
    return found


def _task(path: str) -> JobTask[..., Any]:
    """The task with this path, or with this alias. Raises InvalidValue for others, and for those of another backend."""
    modules = list(registry.discover())
    task = registry.find_task(path)
    if task is None:
        found = did_you_mean(path, registry.names()[0])
        where = f"tasks are looked for in {', '.join(modules)}" if modules else "no app has a module called tasks"
        raise InvalidValue(f"no task is called {path!r:.200}{found}. Nothing was written; {where}.")
    if not isinstance(task, JobTask) or not isinstance(task.get_backend(), JobQueueBackend):
        raise InvalidValue(
            f"the task {task.module_path} has the backend {task.backend!r} of TASKS, which has no job table. Nothing "
            "was written; jobs enqueue adds jobs of tasks whose backend is jobqueue.backends.JobQueueBackend."
        )
    return task


def _database_of(task: JobTask[..., Any]) -> str:
    return _backend_of(task).database


def _backend_of(task: JobTask[..., Any]) -> JobQueueBackend:
    backend = task.get_backend()
    assert isinstance(backend, JobQueueBackend), "_task() has refused it"
    return backend


def _check_database(task: JobTask[..., Any], given: dict[str, Any]) -> None:
    # As in code, the backend of the task says where its jobs are.
    if given["database"] not in (None, own := _database_of(task)):
        raise InvalidValue(
            f"jobs of {task.module_path} are added to {own!r}, the database of its backend, and not to "
            f"{given['database']!r}. Nothing was written; leave out --database."
        )


def _due(task: JobTask[..., Any], given: dict[str, Any]) -> datetime | None:
    if given["in"] is None:
        at: datetime | None = given["at"]
        return at
    return read_now(_database_of(task)) + timedelta(seconds=given["in"])


ENQUEUE = Subcommand("Add a job of a registered task, as its code does.", _declare, _enqueue)
