"""The measurement at the beginning of the demo: how long a worker takes from its start to the end of its first jobs."""

import time

from django.core.management.base import OutputWrapper
from django.db import transaction

from demo_project.demo.giving_up import undisturbed
from demo_project.demo.program import Program
from demo_project.demo.progress import Progress
from demo_project.demo.tasks import send_receipt
from jobqueue.models import Job

JOBS, QUEUE = 20, "speed"
#: what it takes on two quiet cores
QUIET_SECONDS = 1.1
LOOK_SECONDS = 0.02


def first_jobs(out: OutputWrapper) -> float | None:
    """Seconds from the start of a worker until its first jobs are done; None if it ended before."""
    job = send_receipt.using(queue_name=QUEUE)
    with transaction.atomic():
        ids = [int(job.enqueue(number, "buyer@shop.example").id) for number in range(JOBS)]
    worker = Program("runworker", QUEUE, "--processes", "1", quietly=("--no-reload", "-v", "0"))
    progress = Progress(JOBS, "jobs, to see how fast this machine is", out)
    began = time.monotonic()
    try:
        with progress.moving():
            worker.start()
            while (done := Job.objects.filter(pk__in=ids, status=Job.Status.DONE).count()) < JOBS:
                if not worker.running():
                    return None
                progress.show(done)
                time.sleep(LOOK_SECONDS)
            progress.show(JOBS)
        return time.monotonic() - began
    finally:
        with undisturbed():
            worker.stop()
