"""A group: the marks of its jobs, its members and callbacks, which are stored as jobs, and what is known of it.

Members are added with their jobs in one transaction, in which the row of the group is locked. Counts of a group that
has not ended are read from its members, and may lag.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

from django.db import connections
from django.db.models import Count

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON
from jobqueue.conf.task_spec import spec_of
from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidType, InvalidValue, JobQueueError, WrongDatabase
from jobqueue.failures.text import summary
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.models.group import PARENTS_GATE, WAITS_FOR_PARENTS
from jobqueue.producer.dedupe import holders
from jobqueue.producer.enqueueing import add_many, with_context
from jobqueue.producer.insert import NewJob
from jobqueue.producer.life import FIRST_DUE
from jobqueue.producer.stored import from_json, job_from_json, job_to_json, to_json

#: of a member, and of a callback: the id of the group
MEMBER, CALLBACK = "group", "callback_of"
#: of a node of a workflow: whether nodes waited for it when it was added
PARENT = "parent"
SUCCESS, FAILURE, DONE = "on_success", "on_failure", "on_done"
_PAGE = 1000
State = GroupMember.State
#: a task, (task, args) or (task, args, kwargs)
Callback: TypeAlias = AnyTask | tuple[AnyTask, Sequence[JSON]] | tuple[AnyTask, Sequence[JSON], Mapping[str, JSON]]


def group_of(options: JSON) -> int | None:
    """The group that a job with these options is a member of."""
    return _number(options, MEMBER)


def callback_of(options: JSON) -> int | None:
    """The group that a job with these options is a callback of."""
    return _number(options, CALLBACK)


def is_parent(options: JSON) -> bool:
    """Return whether a job with these options is a node that others wait for."""
    return isinstance(options, dict) and options.get(PARENT) is True


def is_node(options: JSON) -> bool:
    """Return whether a job with these options is a node of a workflow."""
    return isinstance(options, dict) and PARENT in options


def _number(options: JSON, name: str) -> int | None:
    found = options.get(name) if isinstance(options, dict) else None
    # Plain SQL may have written anything.
    return found if type(found) is int and 0 < found < 2**63 else None


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


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node of a workflow to add. `parents`: the places of its parents in the list that is added, all before it."""

    name: str
    job: NewJob
    parents: Sequence[int]


def add_members(group_id: int, jobs: Sequence[NewJob], *, using: str) -> list[int]:
    """Add jobs to a group that has not ended; their ids, in order. All or none, in one transaction or the caller's.

    Raises InvalidValue for a group that has ended, was canceled or does not exist, and for jobs whose dedupe keys are
    held, and what enqueue_many() raises. Nothing was written then.
    """
    if not jobs:
        return []
    work = partial(_add, group_id, [with_option(job, MEMBER, group_id) for job in jobs], None, using)
    return retry_transient("enqueue", work, using=using, repeatable=False)


def add_nodes(group_id: int, nodes: Sequence[NewNode], *, using: str) -> list[int]:
    """Add the nodes of a workflow, as add_members(): those with parents wait for them."""
    wanted = {place for node in nodes for place in node.parents}
    jobs = [
        node_job(node.job, group_id, is_parent=place in wanted, waits=bool(node.parents))
        for place, node in enumerate(nodes)
    ]
    ids = _add(group_id, jobs, [node.name for node in nodes], using)
    pairs = [
        GroupParent(group_id=group_id, child_id=child, parent_id=ids[place])
        for child, node in zip(ids, nodes, strict=True)
        for place in node.parents
    ]
    GroupParent.objects.using(using).bulk_create(pairs, batch_size=vendor(using).insert_rows_max)
    return ids


def node_job(job: NewJob, group_id: int, *, is_parent: bool, waits: bool) -> NewJob:
    """The job of a node. `is_parent`: nodes wait for it; `waits`: it waits for nodes."""
    job = with_option(with_option(job, MEMBER, group_id), PARENT, is_parent)
    if not waits:
        return job
    # The time within which it may be retried begins when its parents have ended, which is its run_at then.
    return replace(without_option(job, FIRST_DUE), waits=(PARENTS_GATE, WAITS_FOR_PARENTS))


def _add(group_id: int, jobs: Sequence[NewJob], names: Sequence[str] | None, using: str) -> list[int]:
    with vendor(using).transaction(connections[using]):
        lock_group(group_id, using)
        return insert_members(group_id, jobs, names, using)


def lock_group(group_id: int, using: str) -> None:
    """Lock the row of a group that members are to be added to. Raises InvalidValue if it takes none."""
    group = JobGroup.objects.using(using).filter(pk=group_id).defer("data").select_for_update().first()
    if group is None:
        raise InvalidValue(f"there is no group {group_id}. Nothing was written.")
    if group.state == JobGroup.State.ENDED or group.canceled_at is not None:
        how = "was canceled" if group.canceled_at is not None else "has ended"
        raise InvalidValue(
            f"the group {group.name!r} ({group_id}) {how}, and takes no more jobs. Nothing was written; "
            "make another group."
        )


def insert_members(
    group_id: int, jobs: Sequence[NewJob], names: Sequence[str] | None, using: str, *, added_by: int | None = None
) -> list[int]:
    """Insert jobs, and their rows as members of a group whose row is locked; their ids, in order."""
    refuse_held_keys(jobs, using)
    ids = add_many(jobs, using=using)
    if any(job.dedupe_key is not None for job in jobs):
        _refuse_others(group_id, ids, using)
    named: Sequence[str | None] = names or [None] * len(ids)
    rows = [
        GroupMember(job_id=job_id, group_id=group_id, name=name, added_by=added_by)
        for job_id, name in zip(ids, named, strict=True)
    ]
    GroupMember.objects.using(using).bulk_create(rows, batch_size=vendor(using).insert_rows_max)
    return ids


def refuse_held_keys(jobs: Sequence[NewJob], using: str) -> None:
    """Raise InvalidValue if a dedupe key of these jobs is held, or comes twice."""
    keys: dict[str, list[bytes]] = {}
    for job in jobs:
        if job.dedupe_key is not None:
            keys.setdefault(job.queue, []).append(job.dedupe_key)
    for queue, given in keys.items():
        if len({*given}) < len(given) or holders(queue, given, using=using):
            raise _held(queue)


def _refuse_others(group_id: int, ids: Sequence[int], using: str) -> None:
    """Raise if one of these jobs is not of the group: another enqueue has taken its key since it was looked for."""
    for queue, options in Job.objects.using(using).filter(pk__in=ids).values_list("queue", "options"):
        if group_of(options) != group_id:
            raise _held(queue)


def _held(queue: str) -> InvalidValue:
    return InvalidValue(
        f"a dedupe key among the members is held by a job of the queue {queue!r}, or comes twice, so the group would "
        "lack a member. Nothing was written; leave the key out, or the member."
    )


def template(task: AnyTask, args: Any, kwargs: Any, using: str) -> NewJob:
    """The job of a task for a group in the database `using`, not written yet. Raises what enqueue() raises.

    Also InvalidType for a task of another backend, and WrongDatabase for one whose jobs are in another database.
    """
    return dated(undated(task, args, kwargs, using), task, using)


def dated(job: NewJob, task: AnyTask, using: str) -> NewJob:
    """A job that undated() gave, with the time after which it does not start, by the database's clock."""
    expires = spec_of(task).expiry
    return job if expires is None else replace(job, expires_at=_instant(expires, job.run_at, using))


def undated(task: AnyTask, args: Any, kwargs: Any, using: str) -> NewJob:
    """template() without expires_at; reads nothing."""
    get_backend = getattr(task, "get_backend", None)
    backend: Any = get_backend() if callable(get_backend) else None
    if not getattr(backend, "jobqueue_backend", False):
        name = getattr(task, "module_path", None) or repr(task)[:80]
        raise InvalidType(
            f"{name} is not a task of a backend of jobqueue. Nothing was written; give one made by @task."
        )
    if backend.database != using:
        raise WrongDatabase(
            f"the jobs of {task.module_path} are in the database {backend.database!r}, and the group is in {using!r}: "
            "no transaction spans both. Nothing was written; give the group the database of its tasks with using=."
        )
    (job,) = with_context([backend.template(task, args, kwargs)])
    return job


def stored(callbacks: Mapping[str, Callback | None], using: str) -> JSON:
    """The callbacks of a group as JSON; None if there are none. Raises what template() raises."""
    return {
        name: _stored(name, callback, using) for name, callback in callbacks.items() if callback is not None
    } or None


def _stored(name: str, callback: Callback, using: str) -> JSON:
    task, args, kwargs = _parts(name, callback)
    try:
        job = undated(task, args, kwargs, using)
    except WrongDatabase:
        raise
    except JobQueueError as error:
        how = "with these arguments" if args or kwargs else "without arguments"
        raise InvalidValue(f"{name} cannot be a callback, which is enqueued {how}: {error}") from error
    if job.dedupe_key is not None:
        raise InvalidValue(
            f"{name} has a dedupe key, so it might not be enqueued. Nothing was written; a callback is enqueued once."
        )
    return {"job": job_to_json(job), "expires": to_json(spec_of(task).expiry)}


def _parts(name: str, callback: Any) -> tuple[AnyTask, list[JSON], dict[str, JSON]]:
    if not isinstance(callback, tuple):
        return callback, [], {}
    task, args, kwargs = (*callback, *([], {})[len(callback) - 1 :]) if 1 <= len(callback) <= 3 else (None, None, None)
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
        raise InvalidType(
            f"{name} must be a task, (task, [args]) or (task, [args], {{kwargs}}), got {callback!r:.100}. "
            "Nothing was written; one argument is written as (task, [value])."
        )
    return task, list(args), dict(kwargs)


def _instant(expires: float | datetime | None, run_at: datetime | None, using: str) -> datetime | None:
    if not isinstance(expires, float):
        return expires
    now = read_now(using)
    return max(now, run_at or now) + timedelta(seconds=expires)


def jobs_of(group: JobGroup, *, succeeded: bool, using: str) -> dict[str, NewJob]:
    """The callbacks to add when a group ends, by their names. Raises InvalidValue if this version cannot read one."""
    callbacks: Any = group.callbacks or {}
    jobs = {}
    for name in (SUCCESS if succeeded else FAILURE, DONE):
        try:
            found = callbacks.get(name)
            if found is None:
                continue
            job, expires = job_from_json(found["job"]), from_json(found["expires"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidValue(f"this version cannot read its {name} ({summary(error)})") from error
        job = replace(job, expires_at=_instant(expires, job.run_at, using))
        jobs[name] = with_option(job, CALLBACK, group.pk)
    return jobs


def with_jobs(callbacks: JSON, added: Mapping[str, int]) -> JSON:
    """The stored callbacks with the ids of the jobs that were added; a workflow that is resumed adds others."""
    found: Any = callbacks
    return found | {name: {**found[name], "jobs": [*_added(found[name]), job_id]} for name, job_id in added.items()}


def added_jobs(callbacks: JSON) -> list[int]:
    """The ids of the callbacks that were added at the ends of a group."""
    return [job_id for one in callbacks.values() for job_id in _added(one)] if isinstance(callbacks, dict) else []


def _added(callback: Any) -> list[int]:
    return list(callback.get("jobs", ())) if isinstance(callback, dict) else []


@dataclass(frozen=True, slots=True)
class MemberFailure:
    """A member that did not end well. `state` is "failed" or "canceled"; `name` is that of a node.

    `cause` is one of failures.FailureCause and `error` the text of its last error; None without one, or if its job was
    deleted.
    """

    job_id: int
    name: str | None
    state: str
    cause: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """A group as it was read. Instants are aware, in UTC. `state` is "open", "sealed" or "ended".

    `if_failed` is that of a workflow; None: it is none. `data` is what group() or workflow() was given.
    """

    id: int
    name: str
    state: str
    total: int
    done: int
    failed: int
    canceled: int
    created_at: datetime
    sealed_at: datetime | None
    canceled_at: datetime | None
    ended_at: datetime | None
    if_failed: str | None = None
    data: JSON = None
    using: str = field(default="default", repr=False, compare=False)  # the alias of its database

    def results(self) -> dict[str, JSON]:
        """The results of the members that are DONE, by the names of nodes; a job without a name by its id, as str.

        Read now, by the thousand. Raises InvalidValue if one was deleted, as it may be after the callbacks have ended.
        """
        return {name or str(job_id): result for job_id, name, result in results_of(self.id, self.using)}

    def failures(self) -> Iterator[MemberFailure]:
        """The members that are FAILED or CANCELED, in the order in which they were added, read by the thousand."""
        return failures_of(self.id, self.using)

    @property
    def outstanding(self) -> int:
        """How many members have not ended."""
        return max(0, self.total - self.done - self.failed - self.canceled)


def read_group(row: JobGroup, using: str) -> Group:
    """The group of a row, with its counts."""
    counts = {name: getattr(row, name) for name in ("total", "done", "failed", "canceled")}
    if row.state != JobGroup.State.ENDED:
        members = GroupMember.objects.using(using).filter(group_id=row.pk)
        found = dict(members.order_by().values_list("state").annotate(jobs=Count("pk")))
        counts = {state.name.lower(): found.get(state, 0) for state in (State.DONE, State.FAILED, State.CANCELED)}
        counts["total"] = sum(found.values())
    return Group(
        id=row.pk,
        name=str(row.name),
        state=JobGroup.State(row.state).name.lower(),
        created_at=row.created_at,
        sealed_at=row.sealed_at,
        canceled_at=row.canceled_at,
        ended_at=row.ended_at,
        if_failed=None if row.if_failed is None else JobGroup.IfFailed(row.if_failed).name.lower(),
        data=row.data,
        using=using,
        **counts,
    )


def still_read(group_ids: Collection[int], using: str) -> set[int]:
    """Those of the groups that have not ended, or whose callbacks have not: results of their members are needed."""
    rows = JobGroup.objects.using(using).filter(pk__in=sorted(group_ids))
    found = {group_id for group_id, state in rows.values_list("pk", "state") if state != JobGroup.State.ENDED}
    ended = rows.exclude(pk__in=found).filter(callbacks__isnull=False)
    added = {job_id: pk for pk, callbacks in ended.values_list("pk", "callbacks") for job_id in added_jobs(callbacks)}
    live = Job.objects.using(using).filter(pk__in=sorted(added), status__in=(Job.Status.READY, Job.Status.PROCESSING))
    return found | {added[job_id] for job_id in (live.values_list("pk", flat=True) if added else ())}


def results_of(group_id: int, using: str) -> Iterator[tuple[int, str | None, JSON]]:
    """Id, name and result of the members that are DONE, in the order in which they were added, read by the thousand.

    Raises InvalidValue if one is missing: members may be deleted after the group and its callbacks have ended, and a
    callback that is run again then must not take the rest for all.
    """
    count = 0
    for page in _pages(group_id, [State.DONE], using):
        jobs = Job.objects.using(using).filter(pk__in=[member.job_id for member in page])
        found = dict(jobs.values_list("pk", "result"))
        for member in page:
            if member.job_id not in found:
                raise _incomplete(group_id, f"job {member.job_id} was deleted")
            yield member.job_id, member.name, found[member.job_id]
        count += len(page)
    group = JobGroup.objects.using(using).filter(pk=group_id).values_list("state", "done").first()
    if group is None or (group[0] == JobGroup.State.ENDED and count < (group[1] or 0)):
        raise _incomplete(group_id, "the group is so old that its members are deleted")


def failures_of(group_id: int, using: str) -> Iterator[MemberFailure]:
    """The members that are FAILED or CANCELED, in the order in which they were added."""
    for page in _pages(group_id, [State.FAILED, State.CANCELED], using):
        jobs = Job.objects.using(using).filter(pk__in=[member.job_id for member in page])
        found = {pk: (cause, error) for pk, cause, error in jobs.values_list("pk", "cause", "last_error")}
        for member in page:
            cause, error = found.get(member.job_id, (None, None))
            yield MemberFailure(member.job_id, member.name, State(member.state).name.lower(), cause, error)


def _pages(group_id: int, states: Sequence[int], using: str) -> Iterator[list[GroupMember]]:
    """The members in these states, in the order in which they were added."""
    members = GroupMember.objects.using(using).filter(group_id=group_id, state__in=states).order_by("job_id")
    after = 0
    while page := list(members.filter(job_id__gt=after)[:_PAGE]):
        yield page
        if len(page) < _PAGE:
            return
        after = page[-1].job_id


def _incomplete(group_id: int, why: str) -> InvalidValue:
    return InvalidValue(
        f"results() of the group {group_id} cannot give all results: {why}. Run the callback without them, or keep "
        "DONE jobs for longer with RETENTION, and groups with GROUP_RETENTION_SECONDS."
    )
