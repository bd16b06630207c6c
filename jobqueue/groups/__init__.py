"""Groups: jobs with callbacks that are enqueued once, when the last one has ended.

All functions run in the caller's transaction, and work in all processes at its commit.
"""

from jobqueue.grouping.reading import Group
from jobqueue.groups.by_hand import cancel, get, known, seal

__all__ = ["Group", "cancel", "get", "known", "seal"]
