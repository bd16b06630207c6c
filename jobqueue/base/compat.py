"""The one place that knows two homes of Django Tasks: django.tasks (6.0 and later) and the django_tasks backport."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from django.dispatch import Signal

from jobqueue.exceptions import WrongSettings

if TYPE_CHECKING or find_spec("django.tasks") is None:
    try:
        import django_tasks as tasks
    except ModuleNotFoundError as error:
        raise WrongSettings(
            "this Django has no Tasks of its own and the package django-tasks is not installed, so jobqueue cannot be "
            "imported. Run: pip install django-tasks"
        ) from error
    from django_tasks import signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TASK_REFRESH_ATTRS, Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
else:
    from django import tasks
    from django.tasks import signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TASK_REFRESH_ATTRS, Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch


class AnyTask(Protocol):
    """A Task of either home, whatever its backend."""

    @property
    def module_path(self) -> str: ...
    @property
    def queue_name(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def run_after(self) -> datetime | None: ...
    @property
    def backend(self) -> str: ...
    @property
    def takes_context(self) -> bool: ...
    @property
    def func(self) -> Callable[..., object]: ...
    def get_backend(self) -> object: ...


_exceptions = vars(import_module(tasks.__name__ + ".exceptions"))
# The backport renamed them between releases.
InvalidTask: type[Exception] = _exceptions.get("InvalidTask") or _exceptions["InvalidTaskError"]
InvalidTaskBackend: type[Exception] = _exceptions.get("InvalidTaskBackend") or _exceptions["InvalidTaskBackendError"]
task_backends = tasks.task_backends


def only_logs(signal: Signal, log: object) -> bool:
    """Return whether Django's own receiver, the function `log`, which logs a line, is alone with one of its signals."""
    receivers = signal.receivers
    return len(receivers) == 1 and receivers[0][0][0] == id(log)


__all__ = [
    "TASK_REFRESH_ATTRS",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "only_logs",
    "signals",
    "task_backends",
]
