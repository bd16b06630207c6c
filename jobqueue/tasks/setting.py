"""What is wrong with the setting TASKS, for the system checks and for workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.conf import settings

from jobqueue.db import Problem
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.producer.queue_names import is_ours
from jobqueue.validation import check_queue, did_you_mean

_BACKEND = "jobqueue.backends.JobQueueBackend"


def unused_problem() -> Problem | None:
    """W028: no backend in TASKS is ours, so tasks do not become jobs."""
    backends = getattr(settings, "TASKS", None) or {}
    if any(map(is_ours, backends.values())):
        return None
    # From Django 6.0 on there is a default. The stubs of Django do not know the method.
    if not settings.is_overridden("TASKS"):  # type: ignore[misc]
        backends = {}
    named = {alias: str(params.get("BACKEND")) for alias, params in backends.items()}
    found = ", ".join(f"{alias}: {path}{did_you_mean(path, [_BACKEND])}" for alias, path in named.items())
    text = f"no backend in TASKS is jobqueue's ({found})" if found else "TASKS is not set"
    return Problem(
        "W028",
        f"jobqueue is installed, but {text}. So enqueue() of a task adds no job that a worker could run: Django's "
        "ImmediateBackend, the default, runs the task inside the calling process.",
        f'Set TASKS = {{"default": {{"BACKEND": "{_BACKEND}"}}}}. If you use jobqueue without tasks, add '
        '"jobqueue.W028" to SILENCED_SYSTEM_CHECKS.',
    )


def entry_problems() -> Iterator[Problem]:
    """E021: wrong values in those entries of TASKS that are ours."""
    backends: Mapping[str, Mapping[str, Any]] = getattr(settings, "TASKS", None) or {}
    for alias, params in backends.items():
        if is_ours(params):
            options: Mapping[str, Any] = params.get("OPTIONS") or {}
            # A subclass may have keys and options of its own.
            if params["BACKEND"] == _BACKEND:
                yield from _unknown(f"TASKS[{alias!r}]", params, ["BACKEND", "QUEUES", "OPTIONS"])
                yield from _unknown(f"TASKS[{alias!r}]['OPTIONS']", options, ["DATABASE"])
            yield from _database(f"TASKS[{alias!r}]['OPTIONS']", options.get("DATABASE"))
            yield from _queues(f"TASKS[{alias!r}]['QUEUES']", params.get("QUEUES") or ())


def _unknown(where: str, given: Mapping[str, Any], known: Sequence[str]) -> Iterator[Problem]:
    for key in given:
        if key not in known:
            near = f" (it belongs in {where}['OPTIONS'])" if key == "DATABASE" else did_you_mean(key, known)
            text = f"{where} has the unknown key {key!r}{near}."
            yield Problem("E021", text, f"Known are {', '.join(known)}; other settings are in JOBQUEUE.")


def _database(where: str, database: object) -> Iterator[Problem]:
    if database and database not in settings.DATABASES:
        hint = f"Choose one of {', '.join(sorted(settings.DATABASES))}."
        yield Problem("E021", f"{where}['DATABASE'] = {database!r} is not in DATABASES.", hint)


def _queues(where: str, queues: Any) -> Iterator[Problem]:
    if isinstance(queues, str):
        yield Problem("E021", f"{where} must be a list of names, is {queues!r}.", f"Write [{queues!r}].")
        return
    for queue in queues:
        try:
            check_queue(queue)
        except (InvalidType, InvalidValue) as error:
            yield Problem("E021", f"{where}: {str(error).partition('. Nothing')[0]}.", "Correct the name.")
