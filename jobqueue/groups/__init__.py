"""Groups: jobs with callbacks that are enqueued once, when the last one has ended. Workflows: groups with an order.

All functions run in the caller's transaction, and work in all processes at its commit. They are imported when they are
first used: `from jobqueue import group, workflow` must work before the app registry is ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobqueue import import_on_first_use

if TYPE_CHECKING:
    from jobqueue.grouping.members import Group, MemberFailure
    from jobqueue.groups.operator import Resumed, cancel, get, known, resume, seal

__all__ = ["Group", "MemberFailure", "Resumed", "cancel", "get", "known", "resume", "seal"]

__getattr__ = import_on_first_use(
    __name__,
    {"operator": "Group MemberFailure Resumed cancel get known resume seal"},
)
