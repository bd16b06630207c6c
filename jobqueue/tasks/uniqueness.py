"""unique, unique_seconds, on_conflict and tags of a task, and the key it has without a dedupe_key."""

from __future__ import annotations

import hashlib
from typing import Any

from jobqueue.compat import AnyTask
from jobqueue.durations import to_seconds
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.payload import JSON, dump
from jobqueue.tasks.signature import by_place
from jobqueue.validation import check_tag

#: the values of unique, and what a row stores for them (models.job); None: 0
MODES = {"waiting": 1, "unfinished": 2}
ON_CONFLICT = ("keep", "replace")
TAGS_MAX = 16
#: no limit: the payload has been measured
_ANY_BYTES = 1 << 62


def checked_uniqueness(task: Any) -> dict[str, object]:
    """These fields as they are stored. Raises InvalidType and InvalidValue."""
    found: dict[str, object] = {"tags": checked_tags(task.tags)}
    if task.unique is not None and (not isinstance(task.unique, str) or task.unique not in MODES):
        raise InvalidValue(
            f"unique must be one of {', '.join(MODES)}, or None, got {task.unique!r:.40}. Nothing was written."
        )
    if task.unique_seconds is not None:
        found["unique_seconds"] = to_seconds(task.unique_seconds, "unique_seconds")
    if task.on_conflict is None:
        return found
    if task.on_conflict not in ON_CONFLICT:
        raise InvalidValue(
            f"on_conflict must be one of {', '.join(ON_CONFLICT)}, got {task.on_conflict!r:.40}. Nothing was written."
        )
    if task.on_conflict == "replace" and not (task.unique or task.unique_seconds or task.dedupe_key is not None):
        raise InvalidValue(
            "on_conflict is given without a key, so no job could be replaced. Nothing was written; give dedupe_key, "
            "unique or unique_seconds."
        )
    return found


def checked_tags(tags: object) -> tuple[str, ...]:
    """`tags` without repetitions. Raises InvalidType and InvalidValue."""
    if isinstance(tags, str) or not isinstance(tags, (tuple, list, set, frozenset)):
        raise InvalidType(f"tags must be a list of names, got {tags!r:.60}. Nothing was written; write ('billing',).")
    found = tuple(dict.fromkeys(sorted(tags, key=str) if isinstance(tags, (set, frozenset)) else tags))
    if len(found) > TAGS_MAX:
        raise InvalidValue(f"a job has at most {TAGS_MAX} tags, got {len(found)}. Nothing was written.")
    for tag in found:
        check_tag(tag)
    return found


def has_own_key(task: AnyTask) -> bool:
    """Whether a hash of the arguments is the key of a job for which the task gives none."""
    return (getattr(task, "unique", None) is not None or getattr(task, "unique_seconds", None) is not None) and getattr(
        task, "dedupe_key", None
    ) is None


def hashed_key(task: AnyTask, payload: dict[str, JSON]) -> bytes:
    """32 bytes of the task and its arguments, the same for equal JSON whatever the order of its keys.

    Also whether they are given by place or by name.
    """
    args, kwargs = by_place(task, payload["args"], payload["kwargs"])
    same: JSON = payload | {"args": list(args), "kwargs": dict(kwargs)}
    text = dump([task.module_path, _sorted(same)], max_bytes=_ANY_BYTES)
    return hashlib.sha256(text.encode()).digest()


def _sorted(value: JSON) -> JSON:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
