"""The sub-commands enqueue and edit: add a job of a registered task, as its code does, and change one that waits."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any

from jobqueue.backends import JobQueueBackend
from jobqueue.base.compat import InvalidTask
from jobqueue.base.durations import parse_seconds
from jobqueue.base.validation import check_id, did_you_mean
from jobqueue.cli.arguments import FOUND, duration
from jobqueue.cli.audited import audit, audit_jobs
from jobqueue.cli.output import Result, Subcommand, instant
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidValue
from jobqueue.masking import MASK, has_mask, mask_value
from jobqueue.producer.insert import NewJob
from jobqueue.tasks import registry
from jobqueue.tasks.definition import Call, JobTask
from jobqueue.transitions.editing import change, in_words


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


_NOW, _NEVER = "now", "never"
#: option -> the field of edit()
_FIELDS = {
    "run_at": "run_at",
    "priority": "priority",
    "queue": "queue",
    "task_args": "args",
    "task_kwargs": "kwargs",
    "max_attempts": "max_attempts",
    "expires": "expires",
    "tags": "tags",
}


def _declare_edit(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("id", metavar="ID", help="the id of a job that waits")
    add("--run-at", type=_when, default=None, metavar="WHEN", help="now, a time from now, or 2026-01-31T18:00+09:00")
    add("--priority", type=int, default=None, metavar="N", help="larger numbers run first")
    add("--queue", default=None, metavar="NAME", help="the queue to which it moves")
    add("--args", type=_list, default=None, dest="task_args", metavar="JSON", help="all its positional arguments")
    add("--kwargs", type=_object, default=None, dest="task_kwargs", metavar="JSON", help="all its keyword arguments")
    add("--max-attempts", type=int, default=None, metavar="N", help="with those that it has used")
    add("--expires", type=_end, default=None, metavar="WHEN", help="never, a time after it is due, or an instant")
    add("--tags", type=_tags, default=None, metavar="A,B", help="all its tags; '' for none")
    add("--by", default=None, metavar="NAME", help="who does it (default: the user of this process)")


def _edit(using: str, given: dict[str, Any]) -> Result:
    fields = {field: given[option] for option, field in _FIELDS.items() if given[option] is not None}
    if has_mask([given["task_args"], given["task_kwargs"]]):
        raise InvalidValue(f"{MASK} stands for a secret that is not shown. Nothing was written; write the value.")
    if isinstance(due := fields.get("run_at"), timedelta):
        fields["run_at"] = read_now(using) + due
    if due == _NOW:
        fields["run_at"] = None
    if fields.get("expires") == _NEVER:
        fields["expires"] = None
    if {"args", "kwargs"} & fields.keys():
        # The task of the job checks them.
        list(registry.discover())
    job_id = check_id(given["id"])
    found = change(job_id, fields, using=using)
    if found is None:
        said = f"job {job_id} was not changed: it does not wait, or does not exist"
        return Result({"id": job_id, "changed": False, "changes": []}, [said], FOUND)
    filters, words = {"job_ids": str(job_id)}, in_words(found)
    audit("edit", filters, reason=words, by=given["by"], using=using)
    changes = [
        {"field": name, "from": _shown(name, before), "to": _shown(name, after)}
        for name, (before, after) in found.items()
    ]
    said = f"job {job_id} is changed: {words or 'it had these values'}"
    return Result({"id": job_id, "changed": True, "changes": changes}, [said])


def _shown(name: str, value: Any) -> Any:
    return mask_value(value) if name in ("args", "kwargs") else instant(value)


def _when(text: str) -> datetime | timedelta | str:
    return _NOW if text == _NOW else _instant_or(text)


def _end(text: str) -> datetime | timedelta | str:
    return _NEVER if text == _NEVER else _instant_or(text)


def _instant_or(text: str) -> datetime | timedelta:
    try:
        return timedelta(seconds=parse_seconds(text))
    except InvalidValue:
        return _instant(text)


def _tags(text: str) -> list[str]:
    return [tag for tag in text.split(",") if tag]


EDIT = Subcommand("Change a job that waits: its time, priority, queue, arguments and others.", _declare_edit, _edit)
