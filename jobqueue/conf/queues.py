"""JOBQUEUE["QUEUES"]: what differs in single queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jobqueue.conf.retention import Kept, read_retention
from jobqueue.conf.rules import BOOL, CONCURRENCY, COUNT, JOB_POLICY, MAPPING, RATE, SECONDS, WHEN_FULL, setting
from jobqueue.exceptions import InvalidValue
from jobqueue.validation import check_queue

ReadValues: TypeAlias = Callable[[type, Mapping[object, object]], tuple[dict[str, Any], list[str]]]


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """JOBQUEUE["QUEUES"][name]: what differs in one queue. None = as in all queues."""

    lease_seconds: float | None = setting(None, SECONDS)
    max_attempts: int | None = setting(None, COUNT)
    ack_each: bool = setting(False, BOOL)  # the end of each job is committed before its thread starts another job
    starve_seconds: float | None = setting(None, SECONDS)  # a job that is due for longer precedes higher priorities
    on_key_failure: str | None = setting(None, JOB_POLICY)  # as ON_KEY_FAILURE
    # How many of its jobs run at once in all workers; (least, most): between these, by depth and trouble.
    concurrency: int | tuple[int, int] | None = setting(None, CONCURRENCY, optional=True)
    rate: str | None = setting(None, RATE, optional=True)  # how fast its jobs start in all workers
    max_ready: int | None = setting(None, COUNT, optional=True)  # so many of its jobs may be due and wait
    when_full: str = setting("refuse", WHEN_FULL)  # what a job meets that would be one more than MAX_READY
    # As RETENTION, for the states that are set here; None = its ended jobs are kept.
    retention: Mapping[str, Kept] = field(default_factory=dict, metadata={"rule": MAPPING._replace(optional=True)})


def read_queues(raw: Mapping[object, object], read_values: ReadValues) -> tuple[dict[str, QueueSettings], list[str]]:
    """QUEUES by name, and a list of what is wrong with it; a wrong value is left at its default."""
    queues, problems = {}, []
    for name, options in raw.items():
        where = f"QUEUES[{name!r}]"
        if not isinstance(name, str) or not isinstance(options, Mapping):
            problems.append(f"{where} must map a queue name to a dict")
            continue
        try:
            check_queue(name)
        except InvalidValue as error:
            problems.append(f"QUEUES: {str(error).partition('. Nothing')[0]}")
            continue
        values, found = read_values(QueueSettings, options)
        if "retention" in values:
            values["retention"], wrong = read_retention(values["retention"])
            found += wrong
        problems += [f"{where}: {problem}" for problem in found]
        queues[name] = QueueSettings(**values)
    return queues, problems
