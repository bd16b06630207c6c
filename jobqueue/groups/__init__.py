"""Groups: jobs with callbacks that are enqueued once, when the last one has ended. Workflows: groups with an order.

All functions run in the caller's transaction, and work in all processes at its commit.
"""

from jobqueue.grouping.reading import Group
from jobqueue.groups.by_hand import cancel, get, known, seal
from jobqueue.groups.resuming import Resumed, resume

__all__ = ["Group", "Resumed", "cancel", "get", "known", "resume", "seal"]
