"""Busy queues of one weight share a worker, however many other queues there are."""

from collections import Counter

from django.db import transaction

from jobqueue.models import Job
from tests.app import tasks
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.harness import LONG

pytestmark = committed


@finding("A8")
def test_queues_that_were_used_once_take_no_turn_from_those_that_have_work(worker, evidence):
    with transaction.atomic():
        for n in range(40):
            tasks.work.using(queue_name=f"once-{n}").enqueue(0)
        for _ in range(150):
            for queue in ("m-1", "m-2"):
                tasks.sleep.using(queue_name=queue, priority=-1).enqueue(0.005)
    Job.objects.filter(queue__startswith="once-").update(status=Job.Status.DONE)
    worker(*LONG, "--concurrency", 1, "--batch-size", 10)
    wait_until(lambda: len(evidence.read("start")) >= 150, what="half of the jobs")
    of = dict(Job.objects.values_list("pk", "queue"))
    shares = Counter(of[int(line[2])] for line in evidence.read("start")[:150])
    assert min(shares["m-1"], shares["m-2"]) >= 55, shares
