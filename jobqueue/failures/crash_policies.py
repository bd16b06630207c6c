"""on_crash of the tasks of this process: for jobs whose rows do not tell it, as those that plain SQL has added."""

from __future__ import annotations

#: by the path of a task, and by its aliases; not of those that are retried
_of_tasks: dict[str, str] = {}


def set_on_crash(task: str, on_crash: str) -> None:
    """Keep on_crash of the task of this path."""
    if on_crash == "retry":
        _of_tasks.pop(task, None)
    else:
        _of_tasks[task] = on_crash


def on_crash_of(task: str | None) -> str | None:
    """What the task says, if not "retry"; None for a handler too, and for a task that this process does not know."""
    return _of_tasks.get(task) if task is not None else None
