"""A bench beside workers of all queues: none of them takes its jobs."""

import json
from io import StringIO

from django.core.management import call_command

from jobqueue import enqueue_many
from jobqueue.models import Job
from jobqueue.transitions.claiming.candidates import BENCH_QUEUE
from tests.app import tasks
from tests.marks import committed
from tests.patience import wait_until

pytestmark = committed


def test_a_bench_claims_all_its_jobs_while_a_worker_of_all_queues_runs_others(worker):
    worker()
    first = tasks.add.enqueue(1, 2)
    wait_until(lambda: Job.objects.get(pk=first.id).status == Job.Status.DONE, what="the worker")
    enqueue_many(BENCH_QUEUE, [1])
    out = StringIO()
    call_command("jobs", "bench", "--seconds", "2s", "--json", stdout=out)
    found = json.loads(out.getvalue())
    assert found["left_over"] == 1
    jobs = {(one["verb"], one["batch"]): one["jobs"] for one in found["measured"]}
    assert all(jobs[verb, batch] == jobs["enqueue", batch] for verb, batch in jobs)
    last = tasks.add.enqueue(3, 4)
    wait_until(lambda: Job.objects.get(pk=last.id).status == Job.Status.DONE, what="the worker")
    assert not Job.objects.filter(queue=BENCH_QUEUE).exists()
