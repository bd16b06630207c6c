"""Checks of the fields of @task and using() whose wrong types Django Tasks does not expect."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from jobqueue.compat import InvalidTaskBackend, task_backends
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.tasks.habits import option_advice
from jobqueue.validation import did_you_mean

#: fields that only the other of the two takes, and how they are written there
_IN_USING = {"run_after": ".using(run_after=...) of the task"}
_TASK_ONLY = ("version", "aliases", "causes", "on_crash", "concurrency_limit", "rate_limit", "takes_context")
_IN_TASK = {name: f"@task({name}=...)" for name in _TASK_ONLY}


class _UnknownBackend(InvalidValue, InvalidTaskBackend):  # type: ignore[valid-type,misc]
    """What Django Tasks raises for an alias that is not in TASKS."""


def check_backend(alias: object, look_up: Callable[[], object]) -> None:
    """Call `look_up`, which looks for the backend of `alias`.

    Raises InvalidType, or Django's InvalidTaskBackend for what is not in TASKS.
    """
    if not isinstance(alias, str):
        raise InvalidType(f"backend must be an alias of TASKS, got {type(alias).__name__}. Nothing was written.")
    try:
        look_up()
    except InvalidTaskBackend as error:
        if alias in task_backends.settings:
            raise
        known = ", ".join(sorted(task_backends.settings))
        # Django's sentence is at the end, for code that looks for it.
        raise _UnknownBackend(
            f"the backend {alias!r}{did_you_mean(alias, task_backends.settings)} is not in TASKS ({known}). Nothing "
            f"was written; add it to TASKS, or use another backend. ({error})"
        ) from None


def check_priority(priority: object) -> None:
    """Raise InvalidType for what is no number. Django Tasks checks the range, and refuses fractions."""
    if isinstance(priority, int) or (isinstance(priority, float) and math.isfinite(priority)):
        return
    raise InvalidType(f"priority must be an int, got {priority!r:.40}. Nothing was written; larger numbers run first.")


def refuse_unknown(given: Collection[str], known: Collection[str], where: str) -> None:
    """Raise InvalidType for a field of `given` that @task or using() does not have."""
    elsewhere = _IN_USING if where == "@task" else _IN_TASK
    for name in given:
        if name not in known:
            advice = option_advice(name, "@task" if where == "@task" else ".using")
            near = f" ({advice})" if advice else did_you_mean(name, known)
            hint = f" (it belongs in {elsewhere[name]})" if name in elsewhere else near
            raise InvalidType(
                f"{where} has no field {name!r}{hint}. Nothing was written; the fields are {', '.join(sorted(known))}."
            )
