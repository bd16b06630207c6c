"""What the end of leases reads of gates: the first job that waits for each key, and none behind it."""

import pytest

from jobqueue import task
from jobqueue.gates import waiting as gates
from jobqueue.gates.limits import slot_subject
from jobqueue.models import GateWait, Job
from tests.gates import jobs
from tests.gates.helpers import add, take, waiting
from tests.marks import committed
from tests.plans.test_redrive_plans import reads, run_write
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]
KEYS = [f"key-{n}" for n in range(20)]


@pytest.fixture
def by_index():
    """PostgreSQL reads a table of a few pages whole, whatever index there is, unless it is told not to."""
    if VENDOR == "postgres":
        run_write("SET enable_seqscan = off")
    yield
    if VENDOR == "postgres":
        run_write("RESET enable_seqscan")


def test_the_end_of_leases_reads_the_first_job_of_each_key_and_none_behind_it(monkeypatch, by_index):
    keyed = task(queue_name="q", concurrency_key=jobs.by_argument, concurrency_limit=1)(jobs.work)
    monkeypatch.setattr(gates, "open_jobs", lambda ids, using: {*ids})
    found = []
    subjects = [slot_subject("q", keyed.module_path, key.encode()).number for key in KEYS]
    for each in (20, 40):
        for key in KEYS:
            add(each, keyed, key)
        take()
        assert len(waiting()) == len(KEYS) * (each - 1)
        found.append(reads(lambda: gates.open_next(subjects, using="default"), "job_gate"))
        Job.objects.all().delete()
        GateWait.objects.all().delete()
    assert found[1] < 1.5 * found[0]
