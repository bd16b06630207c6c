"""Django admin: shows state, offers verbs, edits nothing."""

from jobqueue.admin.job import JobAdmin
from jobqueue.admin.worker import WorkerAdmin

__all__ = ["JobAdmin", "WorkerAdmin"]
