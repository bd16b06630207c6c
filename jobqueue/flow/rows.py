"""The row of job_flow that a control writes: found or made, locked until the transaction ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.db import IntegrityError, transaction

from jobqueue.conf.known_tasks import path_of
from jobqueue.db.alias import explain_missing_table
from jobqueue.db.redone import Verb
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue, UnknownQueue
from jobqueue.gates.rules import forget_rules
from jobqueue.models import FlowRule
from jobqueue.producer.queue_names import known_queues
from jobqueue.tasks import registry
from jobqueue.validation import check_queue, check_text, did_you_mean


def check_place(queue: object, task: object = None, *, using: str) -> tuple[str, str]:
    """(queue, task) of a rule; the task is "" for the whole queue. Raises InvalidValue, InvalidType, UnknownQueue.

    A queue must be in TASKS["QUEUES"] if that has any, and a task be in the tasks.py of an app; or have a rule already,
    which can be ended after the queue or the task is gone.
    """
    name = check_queue(queue)
    path = "" if task is None else _path_of(task)
    names = known_queues()
    if names is not None and name not in names and not _has_rule(name, path, using):
        raise UnknownQueue(
            f"queue {name!r} is not in TASKS['QUEUES'] ({', '.join(sorted(names))}){did_you_mean(name, names)}. "
            "Nothing was written."
        )
    if path and not _is_known(path) and not _has_rule(name, path, using):
        found = did_you_mean(path, registry.names()[0])
        raise InvalidValue(f"no task is called {path!r:.200}{found}. Nothing was written.")
    return name, path


def _is_known(path: str) -> bool:
    """Whether a task has this path; the tasks of all apps are imported before that is denied, as in a shell."""
    if registry.find_task(path) is None:
        list(registry.discover())
    return registry.find_task(path) is not None


def _path_of(task: object) -> str:
    path = task if isinstance(task, str) else getattr(task, "module_path", None) or check_text(task, "task")
    if not path:
        raise InvalidValue("task is empty. Nothing was written; leave it out for the whole queue.")
    # Jobs that are stored under an alias obey the rule of the task.
    return path_of(str(path))


def change(verb: Verb, queue: str, task: str, using: str, write: Callable[[FlowRule], bool]) -> bool:
    """Call `write` with the locked row of (queue, task), and save the row if it returns True; what it returned."""
    changed = retry_transient(verb, partial(_change, queue, task, using, write), using=using)
    forget_rules()
    return changed


def _change(queue: str, task: str, using: str, write: Callable[[FlowRule], bool]) -> bool:
    rows = FlowRule.objects.using(using).filter(queue=queue, task=task)
    with transaction.atomic(using=using):
        row = rows.select_for_update().first()
        if row is None:
            row = _made(queue, task, using) or rows.select_for_update().get()
        changed = write(row)
        if changed:
            row.save(using=using)
        return changed


def _made(queue: str, task: str, using: str) -> FlowRule | None:
    """A new row; None if another session has made it meanwhile."""
    row = FlowRule(queue=queue, task=task)
    try:
        with transaction.atomic(using=using):
            row.save(using=using, force_insert=True)
    except IntegrityError:
        return None
    return row


def _has_rule(queue: str, task: str, using: str) -> bool:
    with explain_missing_table(using):
        return FlowRule.objects.using(using).filter(queue=queue, task=task).exists()
