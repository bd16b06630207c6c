"""What tests of gates do with jobs of queue "q"."""

from jobqueue.db.clock import UtcNow
from jobqueue.gates.timing import open_due
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Gate, GateWait, Job
from jobqueue.transitions import claim
from jobqueue.worker.monitor.chores import Chores


def add(count, task, *arguments):
    """The ids of `count` jobs of a task, in the order they will run."""
    return [int(task.enqueue(*arguments).id) for _ in range(count)]


def take(limit=100, queue="q"):
    """The leases of everything that may start now, by job id."""
    return {lease.job_id: lease for lease in claim(queue, limit, worker="w")}


def taken(limit=100, queue="q"):
    """The ids of everything that may start now; it has started."""
    return list(take(limit, queue))


def waiting():
    """The ids of the jobs that wait behind gates, as their rows say."""
    return list(Job.objects.filter(status=Job.Status.READY, gate=FLOW_GATE).order_by("id").values_list("pk", flat=True))


def rows_of_waiting():
    """The ids of the jobs that those who open gates find."""
    return list(GateWait.objects.order_by("job_id").values_list("job_id", flat=True))


def open_in_time():
    """Do what a worker's monitor does all the time: open the gates whose time has come."""
    return open_due(using="default")


def look_again():
    """Let the time come at which it is looked whether gates may be opened, and do that."""
    Gate.objects.filter(opens_at__isnull=False).update(opens_at=UtcNow())
    return open_in_time()


def sweep():
    """One pass of a worker's sweep, which repairs what crashes have left."""
    return Chores("default").gate_sweep.run_once(None, using="default")
