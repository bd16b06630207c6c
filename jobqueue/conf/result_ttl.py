"""result_ttl_seconds of the tasks of this process. Needs no models: @task comes before the apps are ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

OPTION = "result_ttl_seconds"
_declared: dict[str, float] = {}


def declare_ttl(path: str, aliases: Sequence[str], seconds: Any) -> None:
    """Record how many seconds the DONE jobs of a task are kept; None: as RETENTION says."""
    for name in (path, *aliases):
        if seconds is None:
            _declared.pop(name, None)
        else:
            _declared[name] = seconds


def any_ttl() -> bool:
    """Whether any task of this process has one."""
    return bool(_declared)


def ttl_of(task: str | None, options: object) -> float | None:
    """How long a job is kept after it is DONE: what using() gave it, else what its task says, if either does."""
    if isinstance(options, dict) and isinstance(own := options.get(OPTION), (int, float)):
        return float(own)
    return _declared.get(task) if _declared and task is not None else None
