"""The one place that knows two homes of Django Tasks: django.tasks (6.0 and later) and the django_tasks backport."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING or find_spec("django.tasks") is None:
    try:
        import django_tasks as tasks
    except ModuleNotFoundError as error:
        raise ImproperlyConfigured(
            "this Django has no Tasks of its own and the package django-tasks is not installed, so jobqueue cannot be "
            "imported. Run: pip install django-tasks"
        ) from error
    from django_tasks import signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TASK_REFRESH_ATTRS, Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.utils import normalize_json
else:
    from django import tasks
    from django.tasks import signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TASK_REFRESH_ATTRS, Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django.utils.json import normalize_json


def _exception(module: Any, *names: str) -> type[Exception]:
    found: type[Exception] = next(getattr(module, name) for name in names if hasattr(module, name))
    return found


def _exceptions() -> Any:
    from importlib import import_module

    return import_module(tasks.__name__ + ".exceptions")


# The backport renamed these between releases.
InvalidTask = _exception(_exceptions(), "InvalidTask", "InvalidTaskError")
task_backends = tasks.task_backends

__all__ = [
    "TASK_REFRESH_ATTRS",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "normalize_json",
    "signals",
    "task_backends",
]
