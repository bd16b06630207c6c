"""Jobs to be added later, as JSON documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from jobqueue.base.payload import JSON
from jobqueue.db.fields import Encoded
from jobqueue.producer.insert import NewJob

_READERS: dict[str, Callable[[str], Any]] = {
    "bytes": bytes.fromhex,
    "instant": datetime.fromisoformat,
    "json": Encoded,
}


def job_to_json(job: NewJob) -> dict[str, JSON]:
    """The job as a document."""
    return values(job, NewJob(queue="", payload=Encoded("")))


def job_from_json(document: Mapping[str, JSON]) -> NewJob:
    """The job of a document. Raises TypeError and ValueError for one that this version cannot read."""
    return NewJob(**read(document))


def values(one: Any, default: Any) -> dict[str, JSON]:
    """The fields of a dataclass that differ from those of `default`."""
    names = [each.name for each in fields(one)]
    given = [name for name in names if getattr(one, name) != getattr(default, name)]
    return {name: to_json(getattr(one, name)) for name in given}


def read(document: Mapping[str, JSON]) -> dict[str, Any]:
    """What values() has written."""
    return {name: from_json(value) for name, value in document.items()}


def to_json(value: Any) -> JSON:
    """`value` as JSON. Types that JSON has not are wrapped, so that a new field of a job needs no line here."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, datetime):
        return {"instant": value.isoformat()}
    if isinstance(value, Encoded):
        return {"json": str(value)}
    return list(value) if isinstance(value, tuple) else value


def from_json(value: Any) -> Any:
    """What to_json() was given."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return _READERS[kind](text)
