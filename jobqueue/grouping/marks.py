"""The group of a job, as the options of its row tell it."""

from __future__ import annotations

import json
from dataclasses import replace

from jobqueue.db.fields import Encoded
from jobqueue.payload import JSON
from jobqueue.producer.insert import NewJob

#: of a member, and of a callback: the id of the group
MEMBER, CALLBACK = "group", "callback_of"


def group_of(options: JSON) -> int | None:
    """The group that a job with these options is a member of."""
    return _number(options, MEMBER)


def callback_of(options: JSON) -> int | None:
    """The group that a job with these options is a callback of."""
    return _number(options, CALLBACK)


def _number(options: JSON, name: str) -> int | None:
    found = options.get(name) if isinstance(options, dict) else None
    # Plain SQL may have written anything.
    return found if type(found) is int and 0 < found < 2**63 else None


def marked(job: NewJob, name: str, group_id: int) -> NewJob:
    """The same job with the id of a group in its options."""
    options = json.loads(job.options) if job.options else {}
    return replace(job, options=Encoded(json.dumps({**options, name: group_id}, separators=(",", ":"))))
