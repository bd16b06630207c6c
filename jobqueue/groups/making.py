"""group(): the block that makes a group and adds its members.

Models are imported inside the functions: `from jobqueue import group` must work before the app registry is ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON, encode
from jobqueue.base.validation import check_group_name, check_int, check_list
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InsideCoroutine, InsideTransaction, InvalidType, InvalidValue, OutcomeUnknown

if TYPE_CHECKING:
    from jobqueue.grouping.members import Callback
    from jobqueue.producer.insert import NewJob

CHUNK_MAX = 10_000


def group(
    name: str,
    *,
    data: JSON = None,
    on_success: Callback | None = None,
    on_failure: Callback | None = None,
    on_done: Callback | None = None,
    chunk_size: int | None = None,
    using: str | None = None,
) -> GroupMaker:
    """A `with` block that makes a group of jobs: add() and add_many() of what it gives add members.

    A callback is a task, (task, args) or (task, args, kwargs). Each is enqueued once, in the commit that ends the
    group, after its last member: on_success if all are DONE, on_failure if any is FAILED or CANCELED, on_done always.
    The callbacks of a group without members are enqueued at once.

    The block is one transaction, or part of the caller's: all members are added, or none. With `chunk_size` (1 to
    10,000) members are committed by so many, run meanwhile, and the group is sealed at the end of the block; if the
    block raises, the group stays open with the chunks that were committed: groups.seal() or groups.cancel() ends it.
    The block raises InsideTransaction then, if a transaction is open.

    `name`: 1 to 255 characters, need not be unique. `data`: JSON, which current_job().group.data is in members and
    callbacks. Raises PayloadError, PayloadTooLarge, InvalidValue, InvalidType and WrongDatabase, for callbacks
    too, before anything is written.
    """
    words = check_group_name(name, "group")
    if chunk_size is not None:
        check_int(chunk_size, "chunk_size", 1, CHUNK_MAX)
    callbacks = {"on_success": on_success, "on_failure": on_failure, "on_done": on_done}
    return GroupMaker(words, callbacks, encoded_data(data), chunk_size, using)


def encoded_data(data: JSON) -> Encoded | None:
    """`data` of a group as it is stored. Raises PayloadError and PayloadTooLarge."""
    return None if data is None else Encoded(encode(data, max_bytes=load().max_payload_bytes, what="data"))


class GroupMaker:
    """The block of group(). `id` is the group's id, from the beginning of the block on."""

    def __init__(
        self,
        name: str,
        callbacks: Mapping[str, Callback | None],
        data: Encoded | None,
        chunk_size: int | None,
        using: str | None,
    ) -> None:
        self._name, self._callbacks, self._data, self._chunk_size = name, callbacks, data, chunk_size
        self._given = using
        self._using = ""
        self._id: int | None = None
        self._open = False
        self._block: AbstractContextManager[object] | None = None
        self._waiting: list[NewJob] = []

    @property
    def id(self) -> int:
        """The id of the group. Raises InvalidValue before the block has begun."""
        if self._id is None:
            raise InvalidValue(f"the group {self._name!r} has no id before its `with` block has begun.")
        return self._id

    def __enter__(self) -> GroupMaker:
        from jobqueue.groups.operator import insert_group

        if self._id is not None:
            raise InvalidValue(
                f"the block of the group {self._name!r} has begun before. Nothing was written; call group() again."
            )
        self._using = alias_of(self._given)
        if self._chunk_size is not None and in_open_transaction(self._using):
            raise InsideTransaction(
                f"the group {self._name!r} has a chunk_size, and its chunks cannot be committed one by one inside "
                f"transaction.atomic() on {self._using!r}. Nothing was written; leave it out, or move the block."
            )
        try:
            self._id = insert_group(self._name, self._callbacks, self._data, self._using, self._begin)
        except SynchronousOnlyOperation as error:
            self._give_up(error)
            how = "put the block into a function, and write: await sync_to_async(function)()"
            raise InsideCoroutine("group()", how) from None
        except BaseException as error:
            self._give_up(error)
            raise
        self._open = True
        return self

    def _begin(self) -> None:
        if self._chunk_size is None:
            block = vendor(self._using).transaction(connections[self._using])
            block.__enter__()
            self._block = block

    def _give_up(self, error: BaseException) -> None:
        """Undo what _begin() began: Python calls no __exit__() after an error in __enter__()."""
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(type(error), error, error.__traceback__)

    def add(self, task: AnyTask, *args: JSON, **kwargs: JSON) -> None:
        """Add a member: a job of `task` with these arguments.

        Raises what enqueue() raises, InvalidValue after the end of the block or if the dedupe key of the job is held,
        WrongDatabase if the jobs of the task are in another database. This member was not added then, and may be added
        again; those that were added before stay, also those of a chunk that is not full.
        """
        self._add([self._template(task, list(args), dict(kwargs))])

    def add_many(self, task: AnyTask, calls: Iterable[tuple[JSON, ...] | list[JSON] | Mapping[str, JSON]]) -> None:
        """Add a member for each of `calls`: a tuple of positional arguments, or a dict of keyword arguments.

        Without chunk_size all or none are added. With it, `calls` is read chunk by chunk: if it raises, those of the
        chunks before are added, and a note of the error says how many. Otherwise as add().
        """
        check_list(calls, "calls", Iterable)
        jobs = (self._template(task, *_arguments(call, index)) for index, call in enumerate(calls))
        if self._chunk_size is None:
            self._add(list(jobs))
            return
        added = 0
        try:
            while some := list(islice(jobs, self._chunk_size)):
                self._add(some)
                added += len(some)
        except Exception as error:
            if added:
                error.add_note(
                    f"The first {added} of the calls were added to the group {self.id}, the others were not."
                )
            raise

    def _template(self, task: AnyTask, args: list[JSON], kwargs: dict[str, JSON]) -> NewJob:
        from jobqueue.grouping.members import template

        if not self._open:
            raise InvalidValue(
                f"the block of the group {self._name!r} is over, or has not begun. Nothing was written; call add() "
                "inside the block, or current_job().group.add() in one of its jobs."
            )
        return template(task, args, kwargs, self._using)

    def _add(self, jobs: list[NewJob]) -> None:
        from jobqueue.grouping.members import add_members, refuse_held_keys

        if self._chunk_size is None:
            # At once, so that what the database refuses is raised by this call.
            add_members(self.id, jobs, using=self._using)
            return
        # `jobs` are one chunk at most. Without them if this raises: the caller is told that they were not added.
        waiting = [*self._waiting, *jobs]
        if any(job.dedupe_key is not None for job in jobs):
            retry_transient("enqueue", partial(refuse_held_keys, waiting, self._using), using=self._using)
        if len(waiting) >= self._chunk_size:
            self._write(waiting[: self._chunk_size])
            waiting = waiting[self._chunk_size :]
        self._waiting = waiting

    def _write(self, jobs: list[NewJob]) -> None:
        """Commit a chunk; its jobs go on to wait if that is refused."""
        from jobqueue.grouping.members import add_members

        try:
            add_members(self.id, jobs, using=self._using)
        except OutcomeUnknown:
            # It may be committed, and must not be written twice.
            self._waiting = []
            raise

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        from jobqueue.groups.operator import seal

        self._open = False
        if self._block is None:
            if kind is None:
                self._write(self._waiting)
                seal(self.id, using=self._using)
            return
        if kind is not None:
            self._block.__exit__(kind, error, trace)
            return
        try:
            seal(self.id, using=self._using)
        except BaseException as wrong:
            self._block.__exit__(type(wrong), wrong, wrong.__traceback__)
            raise
        self._block.__exit__(None, None, None)


def _arguments(call: object, index: int) -> tuple[list[JSON], dict[str, JSON]]:
    if isinstance(call, Mapping):
        return [], dict(call)
    if isinstance(call, (tuple, list)):
        return list(call), {}
    raise InvalidType(
        f"calls[{index}] must be a tuple of positional or a dict of keyword arguments, got {type(call).__name__}. "
        "It was not added; one argument is written as (value,)."
    )
