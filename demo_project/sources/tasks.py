"""The job of the demo."""

import os

from django.db.models import F

from demo_project.sources.files import examine
from demo_project.sources.models import Effect, SourceFile
from jobqueue import current_job, task
from jobqueue.exceptions import JobCanceled


@task(queue_name="sources", max_attempts=5)
def read_source(path: str, run: str) -> None:
    """Examine one file and store the result, with an effect exactly once, whatever process is killed."""
    if not SourceFile.objects.filter(path=path, run=run).exists():
        raise JobCanceled(f"demo run {run} has been replaced by a later one")
    found = examine(path)
    job = current_job()
    # The effect and the end of the job are in one commit.
    with job.finish({"lines": found.lines}):
        SourceFile.objects.filter(path=path, run=run).update(**found._asdict(), effects=F("effects") + 1)
        Effect.objects.create(
            path=path, run=run, job_id=job.job_id, attempt=job.attempt, fence=job.fence, pid=os.getpid()
        )
