"""The next jobs of many keys are opened together, and each key gets as many as it has slots for."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import task
from jobqueue.models import Job
from jobqueue.transitions import ack_many
from tests.factories import set_columns
from tests.gates import jobs
from tests.gates.helpers import add, take, taken, waiting

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("own_registry")]
KEYS = [f"key-{n}" for n in range(20)]


@pytest.fixture
def keyed():
    return task(queue_name="q", concurrency_key=jobs.by_argument, concurrency_limit=1)(jobs.work)


def test_the_ends_of_many_jobs_open_the_next_of_their_keys_in_one_transaction(keyed):
    firsts, nexts = ([add(1, keyed, key)[0] for key in KEYS] for _ in range(2))
    leases = take()
    assert list(leases) == firsts
    assert waiting() == nexts
    with CaptureQueriesContext(connection) as sent:
        ack_many(leases.values())
    writes = [query["sql"] for query in sent if query["sql"].startswith(("UPDATE", "DELETE"))]
    # The acks, the gates, and the rows of those who waited.
    assert len(writes) <= 3
    assert taken() == nexts


def test_a_job_that_was_ended_meanwhile_lets_the_one_behind_it_in_and_holds_up_no_other_key(keyed):
    for _ in range(3):
        for key in KEYS[:3]:
            add(1, keyed, key)
    leases = take()
    second = waiting()[0]
    # As plain SQL would: its row among those who wait stays.
    set_columns(second, status=Job.Status.CANCELED, gate=0)
    ack_many(leases.values())
    found = taken()
    assert len(found) == 3
    assert second not in found
