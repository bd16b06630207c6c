"""What people change of a job that waits: edit().

Its keys follow its arguments. A change that could not be made with them in one transaction is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import IntegrityError

from jobqueue.base.payload import JSON
from jobqueue.base.validation import INT_MAX, KEEP, Kept, check_id, check_instant, check_int, did_you_mean, readable_key
from jobqueue.conf import load
from jobqueue.conf.known_tasks import find_task, spec_at
from jobqueue.conf.task_spec import OPTIONS, Expires
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.exceptions import InvalidType, InvalidValue, WrongDatabase
from jobqueue.gates.waiting import FLOW_GATE, ended_unstarted, open_again
from jobqueue.models import Job, JobTag
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.models.rows import in_state
from jobqueue.ordering import SCHEDULED, lanes
from jobqueue.ordering.promote import promote_next
from jobqueue.producer import dedupe
from jobqueue.producer.enqueueing import KEY_WAIT_SECONDS
from jobqueue.producer.insert import bounded_wait
from jobqueue.producer.life import FIRST_DUE, with_first_due
from jobqueue.producer.queue_names import check_known
from jobqueue.transitions.operator import operate

#: field of edit() -> its values before and after; of tags and arguments as lists and objects
Changes = dict[str, tuple[Any, Any]]
_KEYS = ("dedupe_key", "ordering_key", "concurrency_key")


def edit(
    job_id: int | str,
    *,
    run_at: datetime | Kept | None = KEEP,
    priority: int | Kept = KEEP,
    queue: str | Kept = KEEP,
    args: Sequence[Any] | Kept = KEEP,
    kwargs: Mapping[str, Any] | Kept = KEEP,
    max_attempts: int | Kept | None = KEEP,
    expires: Expires | Kept | None = KEEP,
    tags: Sequence[str] | Kept = KEEP,
    using: str | None = None,
) -> bool:
    """READY -> READY with what is given, checked as enqueue() checks it; the rest stays. False in any other state.

    None: `run_at` now, `max_attempts` those of the task or queue, `expires` never. Seconds of `expires` count from the
    moment the job is due. Keys that its task makes of the arguments follow new ones. Raises InvalidValue, InvalidType,
    UnknownQueue, PayloadError before anything is written: also for arguments that this process cannot check, and for a
    key that another job has; DatabaseBusy if a transaction that has used a new key does not end within 10 seconds.
    """
    given = {
        "run_at": run_at, "priority": priority, "queue": queue, "args": args, "kwargs": kwargs,
        "max_attempts": max_attempts, "expires": expires, "tags": tags,
    }  # fmt: skip
    return change(job_id, {name: value for name, value in given.items() if value is not KEEP}, using=using) is not None


def change(job_id: int | str, given: Mapping[str, Any], *, using: str | None = None) -> Changes | None:
    """edit() with the fields that are `given`; what has changed, or None if the job is not READY."""
    number, alias, wanted = check_id(job_id), alias_of(using), _checked(given)
    made: list[_Edit] = []

    def write(job: Job, using: str) -> str | None:
        if job.status != Job.Status.READY:
            return None
        made[:] = [found := _edit(job, wanted, using)]
        return "updated_at" if _write(job, found, using) else None

    with explain_missing_table(alias):
        first = partial(_hold_lane, number, wanted, alias) if {"queue", "args", "kwargs"} & wanted.keys() else None
        if not operate("edit", [number], write, using=alias, first=first):
            return None
    (done,) = made
    if done.moves:
        promote_next([(done.before.queue, done.before.ordering_key)], using=alias)
    if done.frees:
        # It may have been opened for a slot or a token, which the next job can have.
        place = (done.before.task, done.before.concurrency_key)
        ended_unstarted([place], done.before.queue, using=alias)
    return done.changes


def in_words(changes: Changes) -> str:
    """The changes for a history, without values of arguments: not everybody who reads it may see those."""
    return ", ".join(
        f"{place} changed" if name in ("args", "kwargs") else f"{place} {_word(before)} -> {_word(after)}"
        for name, (before, after) in changes.items()
        for place in (_places(name, before, after) if name in ("args", "kwargs") else [name])
    )


def _places(name: str, before: JSON, after: JSON) -> list[str]:
    """Which arguments differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [f"{name}.{key}" for key in {**before, **after} if key not in before or before[key] != after.get(key)]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [f"{name}[{place}]" for place, value in enumerate(after) if value != before[place]]
    return [name]


def _word(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return "none" if value is None or value == [] else " ".join(value) if isinstance(value, list) else str(value)


@dataclass(frozen=True, slots=True)
class _Before:
    """What a job was: its row is changed in place."""

    queue: str
    task: str | None
    ordering_key: bytes | None
    concurrency_key: bytes | None


@dataclass(slots=True)
class _Edit:
    """What an edit writes."""

    before: _Before
    columns: dict[str, Any]
    tags: tuple[str, ...] | None = None
    changes: Changes = field(default_factory=dict)
    moves: bool = False  # to another lane
    asks_again: bool = False  # for its limits
    frees: bool = False  # a place that it may have had among those of its limits
    reason: str | None = None  # its wait_reason without a gate


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    if not given:
        raise InvalidValue(f"an edit changes nothing. Nothing was written; give one of {', '.join(_CHECKS)}.")
    for name in given:
        if name not in _CHECKS:
            raise InvalidType(f"edit() has no field {name!r}{did_you_mean(name, _CHECKS)}. Nothing was written.")
    return {name: _CHECKS[name](value) for name, value in given.items()}


def _check_args(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise InvalidType(f"args must be a list, got {type(value).__name__}. Nothing was written.")
    return list(value)


def _check_kwargs(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidType(f"kwargs must be a dict of names, got {type(value).__name__}. Nothing was written.")
    return dict(value)


_CHECKS: Mapping[str, Any] = {
    "run_at": lambda value: None if value is None else check_instant(value),
    "queue": check_known,
    "priority": lambda value: check_int(value, "priority", -INT_MAX - 1),
    "args": _check_args,
    "kwargs": _check_kwargs,
    "max_attempts": lambda value: None if value is None else check_int(value, "max_attempts", 1),
    "expires": lambda value: None if value is None else OPTIONS["expires"].check(value, "expires"),
    "tags": lambda value: OPTIONS["tags"].check(value, "tags"),
}


def _hold_lane(job_id: int, wanted: Mapping[str, Any], using: str) -> None:
    """Hold the ordering key to which the job goes, before the job is locked, as those do who add one."""
    job = Job.objects.using(using).filter(pk=job_id).defer("result", "last_error").first()
    if job is not None and job.status == Job.Status.READY:
        found = _edit(job, wanted, using)
        if found.moves and found.columns["ordering_key"] is not None:
            _hold(found, using)


def _hold(found: _Edit, using: str) -> None:
    with bounded_wait(time.monotonic() + KEY_WAIT_SECONDS, using):
        lanes.hold([(found.columns["queue"], found.columns["ordering_key"])], using)


def _edit(job: Job, wanted: Mapping[str, Any], using: str) -> _Edit:
    """What the edit makes of this row, which the open transaction has locked if it is to be written."""
    found = _Edit(
        _Before(job.queue, job.task, job.ordering_key, job.concurrency_key),
        {"queue": job.queue, **{key: getattr(job, key) for key in _KEYS}},
    )
    columns, now = found.columns, read_now(using)
    for name in ("queue", "priority"):
        if name in wanted:
            columns[name] = wanted[name]
            found.changes[name] = (getattr(job, name), wanted[name])
    if {"args", "kwargs"} & wanted.keys():
        _set_arguments(job, wanted, found, using)
    due: datetime = job.run_at
    if "run_at" in wanted:
        due = wanted["run_at"] or now
        columns |= {"run_at": wanted["run_at"] or UtcNow(), **_life(job, max(due, now))}
        found.changes["run_at"] = (job.run_at, due)
    if "expires" in wanted:
        columns["expires_at"] = _expiry(wanted["expires"], max(due, now))
        found.changes["expires"] = (job.expires_at, columns["expires_at"])
    if "max_attempts" in wanted:
        _set_attempts(job, wanted["max_attempts"], found)
    if "tags" in wanted:
        found.tags = wanted["tags"]
        tags = JobTag.objects.using(using).filter(job_id=job.pk).order_by("pk").values_list("tag", flat=True)
        found.changes["tags"] = (list(tags), list(wanted["tags"]))
    every = found.changes
    found.changes = {name: every[name] for name in _CHECKS if name in every and every[name][0] != every[name][1]}
    _set_place(job, found, due > now)
    return found


def _set_place(job: Job, found: _Edit, later: bool) -> None:
    """Where it waits: its lane, its gate and its reason."""
    own, columns = found.before, found.columns
    lane, other_lane = (own.queue, own.ordering_key), (columns["queue"], columns["ordering_key"])
    found.moves = lane != other_lane and not lane[1] is other_lane[1] is None
    found.reason = SCHEDULED if later else None
    other = (own.queue, own.concurrency_key) != (columns["queue"], columns["concurrency_key"])
    found.asks_again = job.gate == FLOW_GATE and (other or bool({"priority", "run_at"} & found.changes.keys()))
    found.frees = other or ("run_at" in found.changes and later)
    if "run_at" in found.changes and not job.gate:
        columns["wait_reason"] = found.reason
    if found.moves and job.gate in (HELD_GATE, PARENTS_GATE):
        what = "is held after a crash" if job.gate == HELD_GATE else "waits for other jobs of its workflow"
        raise InvalidValue(
            f"job {job.pk} {what}, and this would move it to another ordering key or queue of its key. Nothing was "
            "written; retry it first, or cancel it and enqueue another one."
        )


def _life(job: Job, due: datetime) -> dict[str, Any]:
    """When its life begins, if its options tell and no run of it has begun that counts."""
    known = job.options.get(FIRST_DUE) if isinstance(job.options, dict) else None
    if not (isinstance(known, list) and len(known) == 2 and known[1] == job.attempts):
        return {}
    return {"options": with_first_due(job.options, due, job.attempts)}


def _expiry(expires: Any, due: datetime) -> datetime | None:
    if expires is None or isinstance(expires, datetime):
        return None if expires is None else check_instant(expires, "expires")
    after = expires if isinstance(expires, timedelta) else timedelta(seconds=expires)
    try:
        return check_instant(due + after, "expires")
    except OverflowError:
        raise InvalidValue(f"expires is {after} after the job is due. Nothing was written.") from None


def _set_attempts(job: Job, given: int | None, found: _Edit) -> None:
    most = given or spec_at(job.task).max_attempts or load().queue_max_attempts(found.columns["queue"])
    if most <= job.attempts:
        raise InvalidValue(
            f"job {job.pk} has used {job.attempts} attempts, so its max_attempts must be at least {job.attempts + 1}, "
            f"got {most}. Nothing was written; discard it to end it."
        )
    found.columns["max_attempts"] = most
    found.changes["max_attempts"] = (job.max_attempts, most)
    if job.allowance is not None:
        # Those of one life, without the attempts of earlier ones.
        found.columns["allowance"] = max(1, job.allowance + most - job.max_attempts)


def _set_arguments(job: Job, wanted: Mapping[str, Any], found: _Edit, using: str) -> None:
    """The payload, and the keys that the task makes of the arguments."""
    payload = _payload(job, using)
    given = {name: wanted[name] for name in ("args", "kwargs") if name in wanted}
    backend = _backend(job, using)
    text, new, old = backend.edited(
        find_task(job.task or ""), payload, given, mode=job.unique_mode, seconds=job.unique_seconds
    )
    found.columns["payload"] = text
    known = payload if isinstance(payload, dict) else {}
    found.changes |= {name: (known.get(name), value) for name, value in given.items()}
    for name in _KEYS:
        found.columns[name] = _key(job, name, new[name], old)
    if job.released_key is not None:
        # It was made of the old arguments; a retry would take it back.
        found.columns["released_key"] = None


def _payload(job: Job, using: str) -> JSON:
    found: JSON
    if "payload" not in job.get_deferred_fields():
        found = job.payload
    else:
        # Of the row that is locked: another edit may have changed it, which a snapshot would not show.
        row = Job.objects.using(using).filter(pk=job.pk).select_for_update()
        found = row.values_list("payload", flat=True).get()
    return found


def _backend(job: Job, using: str) -> Any:
    """What checks the arguments of a job. Raises InvalidValue where nothing can."""
    if job.task is None:
        raise InvalidValue(
            f"job {job.pk} is a raw row for the handler of its queue: it has a payload, and no arguments. Nothing was "
            "written; cancel it and enqueue another one."
        )
    task = find_task(job.task)
    backend: Any = None if task is None else task.get_backend()
    if not getattr(backend, "jobqueue_backend", False):
        raise InvalidValue(
            f"the task {job.task!r} of job {job.pk} is not known here, so its arguments cannot be checked. Nothing was "
            "written; edit them where the code of the task is loaded."
        )
    if backend.database != using:
        raise WrongDatabase(
            f"the jobs of {job.task} are in the database {backend.database!r}, and job {job.pk} is in {using!r}. "
            "Nothing was written."
        )
    return backend


def _key(job: Job, name: str, new: bytes | None, old: Mapping[str, bytes | None]) -> bytes | None:
    """The key of the job with its new arguments. One that the task did not make of the old ones stays, if it may."""
    own: bytes | None = getattr(job, name)
    if name in old and old[name] == own:
        return new
    # It was freed, or other programs have left it out.
    if own is None or own == new:
        return own
    if new is None or (name in old and old[name] == new):
        # It does not depend on these arguments.
        return own
    raise InvalidValue(
        f"job {job.pk} has the {name} {readable_key(own)}, which its task does not make of the arguments that it has: "
        "whether it fits the new ones is not known. Nothing was written; cancel the job and enqueue another one."
    )


def _write(job: Job, found: _Edit, using: str) -> bool:
    columns = found.columns
    row = in_state([job.pk], Job.Status.READY, using=using).filter(fence=job.fence, epoch=job.epoch)
    # Those of lanes.move().
    own = {name: value for name, value in columns.items() if name != "ordering_key"}
    try:
        with bounded_wait(time.monotonic() + KEY_WAIT_SECONDS, using):
            if found.moves and columns["ordering_key"] is not None:
                _hold(found, using)
            if columns["dedupe_key"] is not None and (columns["queue"], columns["dedupe_key"]) != (
                job.queue,
                job.dedupe_key,
            ):
                dedupe.free(columns["queue"], columns["dedupe_key"], using=using)
            if not row.update(**own, updated_at=UtcNow()):
                return False
            if found.asks_again:
                open_again(job.pk, found.reason, using)
            if found.moves:
                lanes.move(job.pk, columns["queue"], columns["ordering_key"], found.reason, using)
            if found.tags is not None:
                JobTag.objects.using(using).filter(job_id=job.pk).delete()
                JobTag.objects.using(using).bulk_create([JobTag(job_id=job.pk, tag=tag) for tag in found.tags])
    except IntegrityError as error:
        raise InvalidValue(
            f"another job of queue {columns['queue']} has the dedupe key {readable_key(columns['dedupe_key'])}. "
            "Nothing was written; cancel that one, or leave this one where it is."
        ) from error
    # Who writes it tells the workers of this queue, and opens the next job of this key.
    job.queue, job.ordering_key = columns["queue"], columns["ordering_key"]
    return True
