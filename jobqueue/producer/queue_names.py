"""Which names of queues TASKS allows."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from jobqueue.base.validation import check_queue
from jobqueue.exceptions import UnknownQueue


@cache
def known_queues() -> frozenset[str] | None:
    """The names in TASKS[...]["QUEUES"] of every alias served by our backend; None = any name is allowed.

    An alias of ours without QUEUES, or with an empty list, allows any name.
    """
    ours = [params for params in (getattr(settings, "TASKS", None) or {}).values() if is_ours(params)]
    names = [params.get("QUEUES") or () for params in ours]
    return frozenset(name for group in names for name in group) if ours and all(names) else None


def check_known(queue: object) -> str:
    """`queue` if it is the name of a queue that TASKS allows. Raises InvalidType, InvalidValue, UnknownQueue."""
    name, names = check_queue(queue), known_queues()
    if names is not None and name not in names:
        raise UnknownQueue(
            f"queue {name!r} is not in TASKS['QUEUES'] ({', '.join(sorted(names))}). Nothing was written; "
            "add it there, or set QUEUES to [] to allow any name."
        )
    return name


def is_ours(params: Any) -> bool:
    """Whether an entry of TASKS names our backend, or a subclass of it."""
    # By an attribute, not by the class, because this room must not import the backend.
    try:
        return bool(getattr(import_string(params["BACKEND"]), "jobqueue_backend", False))
    except (ImportError, KeyError, TypeError):
        return False


def _forget(*, setting: str, **_: object) -> None:
    if setting == "TASKS":
        known_queues.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.queues")
