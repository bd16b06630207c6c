"""The definition of a schedule: its terms and the template of its jobs, as one JSON document for all processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON
from jobqueue.conf.task_spec import spec_of
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.models.schedule import DIGEST_CHARS
from jobqueue.producer.insert import NewJob
from jobqueue.producer.life import keeps_first_due, with_first_due
from jobqueue.producer.stored import from_json as value_from_json
from jobqueue.producer.stored import job_from_json, job_to_json, read, values
from jobqueue.producer.stored import to_json as value_to_json
from jobqueue.schedules.timing import Timing

#: in a document: names that the schedule had before its task was renamed
FORMERLY = "formerly"
TERMS = ("missed", "missed_limit", "overlap", "jitter_seconds")


@dataclass(frozen=True, slots=True)
class Definition:
    """Terms and template. `expires` belongs to the template: seconds after a job is due, or an instant."""

    timing: Timing
    template: NewJob
    expires: float | datetime | None = None
    missed: str = "latest"
    missed_limit: int = 100
    overlap: str = "allow"
    jitter_seconds: float = 0.0

    def job(self, tick: datetime, run_at: datetime | None, now: datetime) -> NewJob:
        """The job of a tick, to run at an instant (None: at once)."""
        options = json.loads(self.template.options) if self.template.options else {}
        if keeps_first_due(options):
            options = with_first_due(options, run_at)
        options["tick"] = tick.isoformat()
        expires = self.expires
        if isinstance(expires, float):
            expires = max(now, run_at or now) + timedelta(seconds=expires)
        return replace(self.template, run_at=run_at, options=Encoded(json.dumps(options)), expires_at=expires)


def define(
    task: AnyTask, args: list[JSON], kwargs: dict[str, JSON], timing: Timing, terms: Mapping[str, Any]
) -> Definition:
    """The definition of a schedule of `task`, whose functions of the arguments are called here.

    Raises InvalidType for a task of another backend or with run_after, and what enqueue() raises for a wrong job.
    """
    backend: Any = task.get_backend()
    if not getattr(backend, "jobqueue_backend", False):
        raise InvalidType(
            f"the task {task.module_path} belongs to the backend {task.backend!r}, which is not JobQueueBackend, so "
            "its jobs cannot be scheduled. Nothing was written; name a task of a backend of jobqueue."
        )
    if task.run_after is not None:
        raise InvalidValue(
            f"the task {task.module_path} has a run_after, but a schedule says when its jobs run. Nothing was written; "
            "leave run_after out."
        )
    return Definition(
        timing=timing,
        template=backend.template(task, args, kwargs),
        expires=spec_of(task).expiry,
        **{name: terms[name] for name in TERMS},
    )


def to_json(definition: Definition) -> dict[str, JSON]:
    """The definition as a JSON document. Values that are the default are left out."""
    return {
        "timing": values(definition.timing, Timing()),
        "template": job_to_json(definition.template),
        "expires": value_to_json(definition.expires),
        **{name: getattr(definition, name) for name in TERMS},
    }


def from_json(document: Any) -> Definition:
    """The definition of a document. Raises InvalidValue for one that a newer version of the package has written."""
    try:
        return Definition(
            timing=_checked(Timing(**read(document["timing"]))),
            template=job_from_json(document["template"]),
            expires=value_from_json(document["expires"]),
            **{name: document[name] for name in TERMS},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidValue(
            f"the definition of the schedule cannot be read by this version of jobqueue ({error!r:.100}). "
            "Workers of the version that has written it fire the schedule."
        ) from None


def _checked(timing: Timing) -> Timing:
    """`timing` if ticks can be calculated from it. Raises ValueError."""
    every = timing.every_seconds
    if not isinstance(timing.cron, str) and not (isinstance(every, (int, float)) and every > 0):
        raise ValueError("neither cron nor every")
    return timing


def digest_of(document: Mapping[str, JSON]) -> str:
    """A digest of the document: equal for equal definitions, in all processes."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
