"""What tests of groups and workflows have in common."""

from jobqueue import transitions
from jobqueue.models import Job


def claimed(count=1, queue="default"):
    """Leases as of a worker."""
    return transitions.claim(queue, count, worker="w")


def callbacks():
    """The tasks of the callbacks that were enqueued, in order."""
    rows = Job.objects.order_by("pk").values_list("task", "options")
    return [task.rpartition(".")[2] for task, options in rows if (options or {}).get("callback_of")]
