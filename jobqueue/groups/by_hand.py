"""Look at groups, seal them and cancel them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from django.db import connections

from jobqueue.compat import AnyTask
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.callbacks import stored
from jobqueue.grouping.ending import end_if_last
from jobqueue.grouping.reading import Group, read_group
from jobqueue.models import JobGroup
from jobqueue.transitions.canceling import cancel_members
from jobqueue.validation import check_id, check_int

State = JobGroup.State


def insert_group(
    name: str,
    callbacks: Mapping[str, AnyTask | None],
    using: str,
    begin: Callable[[], None],
    *,
    if_failed: JobGroup.IfFailed | None = None,
) -> int:
    """Check the callbacks, call `begin`, and insert an open group, or a workflow with `if_failed`; its id."""
    group = JobGroup(name=name, state=State.OPEN, callbacks=stored(callbacks, using), if_failed=if_failed)
    begin()
    with explain_missing_table(using):
        retry_transient("enqueue", partial(group.save, using=using, force_insert=True), using=using, repeatable=False)
    return int(group.pk)


def get(group_id: int | str, *, using: str | None = None) -> Group:
    """The group with its counts, which may lag while it has not ended. Raises InvalidValue if there is none."""
    alias, number = alias_of(using), check_id(group_id)

    def read() -> Group:
        row = JobGroup.objects.using(alias).filter(pk=number).first()
        if row is None:
            raise _unknown(number)
        return read_group(row, alias)

    return retry_transient("result", read, using=alias)


def known(*, limit: int = 20, ended: bool = True, using: str | None = None) -> list[Group]:
    """The newest groups, up to `limit` (1 to 10,000). `ended`: also those that have ended."""
    alias = alias_of(using)
    check_int(limit, "limit", 1, 10_000)
    rows = JobGroup.objects.using(alias).order_by("-pk")
    rows = rows if ended else rows.filter(state__in=(State.OPEN, State.SEALED))
    return retry_transient("result", lambda: [read_group(row, alias) for row in rows[:limit]], using=alias)


def seal(group_id: int | str, *, using: str | None = None) -> bool:
    """Let an open group end with its last member, at once if none is outstanding; False if it was sealed before.

    Its running members may still add others. Raises InvalidValue if there is no such group.
    """
    return _seal(group_id, alias_of(using), cancels=False)


def cancel(group_id: int | str, *, using: str | None = None) -> bool:
    """Seal a group, refuse new members, and cancel those that wait; running ones are asked to stop.

    False if it has ended, or was canceled before. In transactions of 500 jobs, or in the caller's. What a process that
    dies leaves undone is done by workers. Raises InvalidValue if there is no such group.
    """
    alias, number = alias_of(using), check_id(group_id)
    changed = _seal(number, alias, cancels=True)
    if changed:
        cancel_members(number, using=alias)
    return changed


def _seal(group_id: int | str, using: str, *, cancels: bool) -> bool:
    number = check_id(group_id)

    def work() -> bool:
        with vendor(using).transaction(connections[using]):
            group = JobGroup.objects.using(using).filter(pk=number).select_for_update().first()
            if group is None:
                raise _unknown(number)
            if group.state == State.ENDED or (group.canceled_at if cancels else group.state == State.SEALED):
                return False
            row = JobGroup.objects.using(using).filter(pk=number)
            if cancels:
                row.update(canceled_at=UtcNow())
            row.filter(state=State.OPEN).update(state=State.SEALED, sealed_at=UtcNow())
            end_if_last(number, using)
            return True

    with explain_missing_table(using):
        return retry_transient("settle", work, using=using)


def _unknown(number: int) -> InvalidValue:
    return InvalidValue(f"there is no group {number}. Nothing was written; `jobs groups` lists them.")
