"""Ended jobs of any age, and what is left of them."""

from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance.pruner import Pruner
from jobqueue.models import Job, JobAttempt
from tests.factories import make_job, set_columns

DAY = 86_400.0


def ended(state, days, queue="q", *, due_days=None, attempts=0, **columns):
    """The id of a job that ended `days` ago, and fell due then or `due_days` ago, with rows of failed attempts."""
    due = days if due_days is None else due_days
    job_id = make_job(queue)
    set_columns(
        job_id,
        status=Job.Status[state],
        finished_at=UtcNowPlus(-days * DAY),
        run_at=UtcNowPlus(-due * DAY),
        **columns,
    )
    for attempt in range(attempts):
        JobAttempt.objects.create(job_id=job_id, attempt=attempt + 1, fence=attempt + 1, cause="CODE", error="boom")
    return job_id


def kept(settings, **retention):
    """Let RETENTION be these states; a value by any other name is that of JOBQUEUE."""
    others = {name: retention.pop(name) for name in [*retention] if name.isupper()}
    settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "RETENTION": retention, **others}


def prune(batch=1000):
    """Take all steps of one walk; the number of deleted jobs."""
    pruner, deleted = Pruner(batch, once=True), 0
    while True:
        deleted += pruner.run_once(load(), using="default")["jobs_deleted"]
        if not pruner.more:
            return deleted


def left():
    """The ids of the jobs that are left."""
    return list(Job.objects.order_by("id").values_list("pk", flat=True))
