"""The rules of a project: JOBQUEUE["CAUSES"] for all tasks, @task(causes=...) for one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

from jobqueue.base.validation import did_you_mean
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.failures.codes import FailureCause

#: the causes that a project may give
_NAMES = {cause.name: cause for cause in FailureCause if cause.given}


def read_causes(given: object, where: str) -> dict[str, FailureCause]:
    """A mapping of class paths (or classes) to names of causes as rules. Raises InvalidType or InvalidValue."""
    if not isinstance(given, Mapping):
        raise InvalidType(f"{where} must be a dict of class paths and causes, got {given!r:.80}.")
    found: dict[str, FailureCause] = {}
    for kind, name in given.items():
        path = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else kind
        if isinstance(kind, type) and not issubclass(kind, BaseException):
            raise InvalidType(f"{where}: {path} is not an exception class.")
        if not isinstance(path, str) or "." not in path or not all(map(str.isidentifier, path.split("."))):
            raise InvalidValue(f"{where}: {path!r:.80} is not the path of an exception class, as 'app.CardDeclined'.")
        cause = _NAMES.get(name.upper()) if isinstance(name, str) else None
        if cause is None:
            raise InvalidValue(
                f"{where}: the cause of {path} must be one of {', '.join(_NAMES)}, is {name!r:.80}"
                f"{did_you_mean(name, _NAMES)}."
            )
        found[path] = cause
    return found


def read_setting(raw: Mapping[object, object]) -> tuple[dict[str, FailureCause], list[str]]:
    """JOBQUEUE["CAUSES"] as rules, and a list of what is wrong with it."""
    causes: dict[str, FailureCause] = {}
    problems = []
    for kind, cause in raw.items():
        try:
            causes |= read_causes({kind: cause}, "CAUSES")
        except (InvalidType, InvalidValue) as error:
            problems.append(str(error).removesuffix("."))
    return causes, problems


def own_rule(rules: Mapping[str, FailureCause], kind: type, path: str) -> FailureCause | None:
    """The cause that `rules` give to a class: by its own path, or by another one from where it can be imported."""
    if path in rules or not rules:
        return rules.get(path)
    return next((cause for other, cause in rules.items() if _loaded(other) is kind), None)


def _loaded(path: str) -> object:
    """The object of a path, if its module is loaded. Nothing is imported: the class of an error is loaded."""
    module, _, name = path.rpartition(".")
    while module:
        if module in sys.modules:
            found: object = sys.modules[module]
            try:
                for part in name.split("."):
                    found = getattr(found, part, None)
            except BaseException:  # a module that loads its names late may raise anything
                return None
            return found
        module, _, before = module.rpartition(".")
        name = f"{before}.{name}"
    return None


def missing_class(path: str) -> str | None:
    """The problem of the path of a class, as `check` reports it; imports its module."""
    module = path.rpartition(".")[0]
    while module:
        try:
            importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module = module.rpartition(".")[0]
        except Exception as error:
            return f"its module {module} cannot be imported ({type(error).__name__}: {error})"
    found = _loaded(path) if module else None
    if isinstance(found, type) and issubclass(found, BaseException):
        return None
    if found is not None:
        return "it is not an exception class"
    holder = sys.modules.get(path.rpartition(".")[0])
    known = vars(holder).items() if holder is not None else ()
    names = [name for name, value in known if isinstance(value, type) and issubclass(value, BaseException)]
    return f"there is no such class{did_you_mean(path.rpartition('.')[2], names)}"
