"""Whether workers find a task: they import the tasks.py of each installed app, and what that imports."""

from __future__ import annotations

import ast
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import resolve_name
from inspect import getsource, isasyncgenfunction, isgeneratorfunction
from types import FunctionType, ModuleType
from typing import Any

from django.apps import apps
from django.conf import settings

from jobqueue.base.compat import AnyTask, Task, task_backends
from jobqueue.base.validation import signature_of
from jobqueue.tasks import registry

logger = logging.getLogger("jobqueue")

#: what a shell, a notebook or a script calls its own module; in a worker it is another one, or none
_OWN_NAMES = {"__main__", "__mp_main__", "__console__", "builtins", "None"}
#: begins the path of a task that is typed in `manage.py shell`, where functions have no module
_NAMELESS = "None."
_SHELLS = (".management.commands.shell", ".management.commands.shell_plus")
_warned: set[str] = set()


def misplaced(func: Callable[..., object]) -> str | None:
    """Why no module can have this function as a task, and where it belongs; None for a function that it can."""
    name = getattr(func, "__qualname__", type(func).__name__)
    if not isinstance(func, FunctionType):
        why = f"{type(func).__name__} objects have no name by which a worker finds them: write a function that calls it"
    elif "<locals>" in name:
        why = f"{name} is defined inside a function, so it does not exist in a worker"
    elif "<lambda>" in name:
        why = "a lambda has no name by which a worker finds it: write a function"
    elif "." in name and _first_parameter(func) in ("self", "cls"):
        why = f"{name} is a method, and a worker has no object to call it on: write a function that loads the object"
    else:
        return None
    return f"{why}. Tasks are functions at the top level of {_place(getattr(func, '__module__', None) or '')}."


def never_run(func: Callable[..., object]) -> str | None:
    """Why a call of this function runs nothing of its body; None for one that runs."""
    if not (isgeneratorfunction(func) or isasyncgenfunction(func)):
        return None
    return (
        f"{func.__module__}.{func.__qualname__}: the function yields, so a call of it runs nothing of its body. Return "
        "a list instead, or make a task of a function that runs the generator to its end."
    )


def _first_parameter(func: Callable[..., object]) -> str | None:
    signature = signature_of(func, follow_wrapped=True)
    return next(iter(signature.parameters), None) if signature else None


def warn_if_lost(task: AnyTask) -> None:
    """Log once that no worker finds a task of a shell or script, and where it belongs."""
    module = task.func.__module__ or "__main__"
    if (module in _OWN_NAMES or module.endswith(_SHELLS)) and task.module_path not in _warned:
        _warned.add(task.module_path)
        logger.warning(
            "%s is defined in a shell or script, which workers do not import, so its jobs wait for ever. Cancel them, "
            "and put the task into tasks.py of an app in INSTALLED_APPS",
            task.module_path.removeprefix(_NAMELESS),
        )


def workers_import(path: str) -> str:
    """Return the part of a message that says what workers import, and what to do about a task that they do not know."""
    if any(path.startswith(f"{name}.") for name in _task_modules()):
        return "restart the worker, because it runs older code, or look in its log for an import that failed"
    module = path.rpartition(".")[0]
    text = f"workers import only the tasks.py of installed apps: put it into {_place(module)}"
    return text if module in _OWN_NAMES else f"{text}, or import {module} there"


def unfindable() -> Iterator[tuple[str, str]]:
    """(What is wrong, what to do) for each module with tasks that workers do not import.

    Imports the URLs of the project and the tasks.py of all apps, if there is a task that may be lost.
    """
    if not any(getattr(task_backends[alias], "jobqueue_backend", False) for alias in task_backends):
        return
    with suppress(Exception):  # Django's own check of the URLs says what is wrong there
        import_module(settings.ROOT_URLCONF)
    late = [task for task in registry.late_tasks() if not _is_sought(task.func.__module__ or "")]
    if not late:
        return
    list(registry.discover())
    lost = {task.func.__module__ for task in late}
    lost -= _imported_from(_task_modules(), {name.partition(".")[0] for name in lost})
    for module in sorted(lost):
        paths = ", ".join(sorted(task.module_path for task in late if task.func.__module__ == module))
        text = f"Workers do not import {module}, so they cannot run jobs of {paths}."
        yield text, f"Put the tasks into {_place(module)}, or import {module} there."


def _task_modules() -> list[str]:
    return [f"{config.name}.tasks" for config in apps.get_app_configs()]


def _is_sought(module: str) -> bool:
    """Whether workers import a module of this name, or its tasks need no worker, as those of tests."""
    parts = module.split(".")
    if not module or any(part in ("tests", "test", "conftest") or part.startswith("test_") for part in parts):
        return True
    return any(module == name or module.startswith(f"{name}.") for name in _task_modules())


def _place(module: str) -> str:
    """The file for the tasks of a module."""
    config = apps.get_containing_app_config(module) if apps.apps_ready else None
    return "tasks.py of an app in INSTALLED_APPS" if config is None else f"{config.name.replace('.', '/')}/tasks.py"


def _imported_from(names: Iterable[str], tops: set[str]) -> set[str]:
    """`names` and the loaded modules that these import, by way of modules below `tops`."""
    todo, found = list(names), set[str]()
    while todo:
        name = todo.pop()
        if name in found or name not in sys.modules:
            continue
        found.add(name)
        if name.partition(".")[0] in tops:
            todo += _imports(sys.modules[name])
    return found


def _imports(module: ModuleType) -> Iterator[str]:
    """The names of what a module imports: as its source says, or without source as its contents show."""
    try:
        tree = ast.parse(getsource(module))
    except (OSError, TypeError, SyntaxError):
        yield from (origin for value in vars(module).values() if (origin := _origin(value)))
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in _with_parents(alias.name))
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):
                base = resolve_name("." * node.level + (node.module or ""), module.__package__ or "")
                yield from _with_parents(base)
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    """a.b.c, a.b and a: an import of the first imports them all."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _origin(value: Any) -> str | None:
    """The name of the module that a value in a module's namespace comes from."""
    # By type(): isinstance() would evaluate lazy objects.
    kind = type(value)
    if issubclass(kind, ModuleType):
        return str(value.__name__)
    if issubclass(kind, Task):
        return str(value.func.__module__)
    return str(value.__module__) if issubclass(kind, (FunctionType, type)) else None
