"""What a child holds in memory has a bound, however long payloads are."""

import re
from pathlib import Path

from jobqueue import enqueue_many
from jobqueue.models import Job, Worker
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.harness import LONG, SHORT

pytestmark = committed
MB = 2**20


def enqueue_long(count):
    """So many jobs of 0.9 MB, in several transactions: a server need not take them as one packet."""
    for start in range(0, count, 10):
        enqueue_many("webhooks", [{"n": n, "blob": "x" * 900_000} for n in range(start, min(count, start + 10))])


def peak_bytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def all_done():
    return not Job.objects.exclude(status=Job.Status.DONE).exists()


@finding("B4")
def test_jobs_with_long_payloads_are_claimed_a_few_at_a_time(worker, evidence):
    enqueue_long(80)
    worker(*LONG, "--concurrency", 4)
    wait_until(all_done, what="the end of all jobs")
    (child,) = {line[1] for line in evidence.read("effect")}
    # Some 70 MB without any job, and three copies of each of about 20 payloads.
    assert peak_bytes(child) < 150 * MB, peak_bytes(child) / MB


@finding("B4")
def test_children_that_are_larger_than_allowed_from_the_start_run_their_jobs_all_the_same(worker, evidence):
    enqueue_many("webhooks", [{"n": n} for n in range(20)])
    worker(*LONG, "--concurrency", 1, "--max-rss", "1M")
    wait_until(all_done, what="the end of all jobs")
    assert len(evidence.read("effect")) == 20


def test_the_row_of_a_worker_has_its_memory(worker):
    worker(*SHORT, "--concurrency", 1)
    wait_until(lambda: Worker.objects.filter(rss_bytes__isnull=False).exists(), what="a heartbeat with the memory")
    found = Worker.objects.get()
    assert 5 * MB < found.rss_bytes <= peak_bytes(found.pid)
