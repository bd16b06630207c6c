"""The schedules of JOBQUEUE["SCHEDULES"], declared like those of the code."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from django.utils.module_loading import import_string

from jobqueue.compat import AnyTask, Task
from jobqueue.conf import Settings, load
from jobqueue.conf.schedules import KEYS
from jobqueue.conf.task_spec import spec_of
from jobqueue.db.dialect import Problem
from jobqueue.exceptions import InvalidValue, JobQueueError
from jobqueue.schedules.declaring import declare, declared, withdraw
from jobqueue.tasks import registry
from jobqueue.validation import did_you_mean

logger = logging.getLogger("jobqueue.worker")


def declare_settings() -> None:
    """Declare the schedules of the settings. Call it when the tasks are registered; a wrong one is logged, left out."""
    for name, error in problems(load().schedules):
        logger.error("SCHEDULES[%r] is left out: %s", name, error)


def problems(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Exception]]:
    """Declare these schedules of the settings; the name and the error of each that is wrong."""
    for name in [name for name, one in declared().items() if one.source == "settings"]:
        withdraw(name)
    for name, entry in entries.items():
        try:
            _declare(name, entry)
        except Exception as error:
            # Also what the module of the task raises when it is imported: the others are declared all the same.
            yield name, error if isinstance(error, JobQueueError) else InvalidValue(f"{type(error).__name__}: {error}")


def check_problems(conf: Settings) -> Iterator[Problem]:
    """E008 for each wrong schedule of the settings; W040 for each schedule that ticks while its key is held."""
    for name, error in problems(conf.schedules):
        hint = "Workers leave it out. Correct the setting."
        yield Problem("E008", f"JOBQUEUE: SCHEDULES[{name!r}]: {error}", hint)
    for one in list(declared().values()):
        spec = spec_of(one.task)
        if spec.dedupe_key is None or spec.unique is not None:
            continue
        held = conf.dedupe_seconds if spec.unique_seconds is None else spec.unique_seconds
        ticks = one.terms.timing.first(2, datetime.now(UTC))
        if len(ticks) == 2 and (held is None or (ticks[1] - ticks[0]).total_seconds() < held):
            yield Problem(
                "W040",
                f"The schedule {one.name!r} ticks more often than the dedupe key of {one.task.module_path} is free: a "
                "tick adds no job while the last job holds the key, which it does for a time after its end.",
                'Give the task unique="unfinished", which frees the key when the job ends, or hold the key for less.',
            )


def _declare(name: str, entry: Mapping[str, Any]) -> None:
    if name in declared():
        raise InvalidValue(
            f"there are two schedules of the name {name!r}, in the settings and in the code "
            f"({declared()[name].task.module_path}). That of the code counts; give one of them another name."
        )
    given = {argument: entry[key] for key, argument in KEYS.items() if key in entry}
    declare(name, task_of(entry["TASK"]), entry.get("ARGS", ()), entry.get("KWARGS"), given, "settings")


def task_of(path: str) -> AnyTask:
    """The task of a path, whose module is imported if it has to be. Raises InvalidValue if there is none."""
    task = registry.find_task(path)
    if task is not None:
        return task
    try:
        found = import_string(path)
    except ImportError:
        found = None
    if isinstance(found, Task):
        return found
    raise InvalidValue(
        f"no task is called {path!r:.200}{did_you_mean(path, registry.names()[0])}. Nothing was written; give the "
        "dotted path of a task in the tasks.py of an app."
    )
