"""The group of a job, as the options of its row tell it."""

from __future__ import annotations

import json
from dataclasses import replace

from jobqueue.db.fields import Encoded
from jobqueue.payload import JSON
from jobqueue.producer.insert import NewJob

#: of a member, and of a callback: the id of the group
MEMBER, CALLBACK = "group", "callback_of"
#: of a node of a workflow that is a parent of others: true
PARENT = "parent"


def group_of(options: JSON) -> int | None:
    """The group that a job with these options is a member of."""
    return _number(options, MEMBER)


def callback_of(options: JSON) -> int | None:
    """The group that a job with these options is a callback of."""
    return _number(options, CALLBACK)


def is_parent(options: JSON) -> bool:
    """Whether a job with these options is a node that others wait for."""
    return isinstance(options, dict) and options.get(PARENT) is True


def _number(options: JSON, name: str) -> int | None:
    found = options.get(name) if isinstance(options, dict) else None
    # Plain SQL may have written anything.
    return found if type(found) is int and 0 < found < 2**63 else None


def marked(job: NewJob, name: str, group_id: int) -> NewJob:
    """The same job with the id of a group in its options."""
    return with_option(job, name, group_id)


def with_option(job: NewJob, name: str, value: JSON) -> NewJob:
    """The same job with one more option."""
    return _with_options(job, _options(job) | {name: value})


def without_option(job: NewJob, name: str) -> NewJob:
    """The same job without an option, if it has it."""
    return _with_options(job, {key: value for key, value in _options(job).items() if key != name})


def _options(job: NewJob) -> dict[str, JSON]:
    return json.loads(job.options) if job.options else {}


def _with_options(job: NewJob, options: dict[str, JSON]) -> NewJob:
    return replace(job, options=Encoded(json.dumps(options, separators=(",", ":"))) if options else None)
