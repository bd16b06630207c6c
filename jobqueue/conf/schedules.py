"""JOBQUEUE["SCHEDULES"]: schedules of tasks, by name. Their values are read where the tasks are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobqueue.validation import did_you_mean

#: key -> argument of @schedule
KEYS = {
    "CRON": "cron",
    "EVERY": "every",
    "TIMEZONE": "timezone",
    "MISSED": "missed",
    "MISSED_LIMIT": "missed_limit",
    "OVERLAP": "overlap",
    "JITTER_SECONDS": "jitter_seconds",
    "START_AT": "start_at",
    "END_AT": "end_at",
}
_ALL = ("TASK", "ARGS", "KWARGS", *KEYS)


def read_schedules(raw: Mapping[object, object]) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """SCHEDULES by name, and a list of what is wrong with it: keys that do not exist, and a TASK that is missing."""
    found: dict[str, Mapping[str, Any]] = {}
    problems = []
    for name, entry in raw.items():
        where = f"SCHEDULES[{name!r}]"
        if not isinstance(name, str) or not isinstance(entry, Mapping):
            problems.append(f"{where} must map the name of a schedule to a dict")
        elif unknown := [key for key in entry if key not in _ALL]:
            hint = did_you_mean(unknown[0], _ALL) or f"; it has {', '.join(_ALL)}"
            problems.append(f"{where} has the unknown key {unknown[0]!r}{hint}")
        elif not isinstance(entry.get("TASK"), str):
            problems.append(f"{where} must have a TASK: the dotted path of a task")
        else:
            found[name] = entry
    return found, problems
