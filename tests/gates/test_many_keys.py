"""Many keys at once cost few statements, and each key gets as many jobs as it has slots for."""

from itertools import pairwise

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import task
from jobqueue.exceptions import DatabaseBusy
from jobqueue.gates import admit
from jobqueue.gates.limits import slot_subject
from jobqueue.gates.waiting import CLOSED_MAX
from jobqueue.models import GateWait, Job
from jobqueue.transitions import ack_many
from jobqueue.transitions.claiming import claimer, select_then_update
from tests.factories import set_columns
from tests.gates import jobs
from tests.gates.helpers import add, rows_of_waiting, take, taken, waiting

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


def statements(work):
    """How many statements `work` sends."""
    with CaptureQueriesContext(connection) as sent:
        work()
    return len(sent)


def test_a_claim_of_jobs_of_many_keys_sends_as_many_statements_as_one_of_few(keyed, read_once):
    sent = []
    for keys in (2, 20):
        # The first ones make the rows of the slots.
        for key in KEYS[:keys]:
            add(1, keyed, key)
        ack_many(take().values())
        for key in KEYS[:keys]:
            add(CLOSED_MAX // 20, keyed, key)
        sent.append(statements(taken))
        assert len(waiting()) == keys * (CLOSED_MAX // 20 - 1)
        Job.objects.all().delete()
        GateWait.objects.all().delete()
    assert sent[1] <= sent[0]


def test_all_that_wait_have_a_row_with_their_own_subject_and_reason(keyed):
    ids = [job_id for key in KEYS for job_id in add(CLOSED_MAX // 20 + 2, keyed, key)]
    started = take()
    # More than one statement writes.
    assert len(waiting()) > CLOSED_MAX
    assert waiting() == rows_of_waiting() == [job_id for job_id in ids if job_id not in started]
    for job_id, subject in GateWait.objects.values_list("job_id", "subject"):
        job = Job.objects.get(pk=job_id)
        own = slot_subject("q", keyed.module_path, job.concurrency_key)
        assert (subject, job.wait_reason) == (own.number, own.wait_reason)
    assert not GateWait.objects.exclude(urgency=0).exists()


def test_no_more_jobs_of_a_key_are_asked_for_in_one_claim_than_it_has_slots(keyed):
    pairs = task(queue_name="q", concurrency_key=jobs.by_argument, concurrency_limit=2)(jobs.other)
    first = add(5, pairs, "a")
    second = add(5, pairs, "b")
    assert taken(3) == [*first[:2], second[0]]
    assert taken(3) == [second[1]]
    assert set(waiting()) == {*first[2:], *second[2:]}


def test_a_claim_locks_slots_once_in_a_transaction(keyed, monkeypatch):
    """Those of a second time would be locked after the first ones, and two claims could wait for each other."""
    done = []

    def noted(name, function):
        def call(*args, **options):
            done.append(name)
            return function(*args, **options)

        return call

    monkeypatch.setattr(select_then_update, "admit", noted("transaction", admit.admit))
    monkeypatch.setattr(admit, "lock_slots", noted("slots", admit.lock_slots))
    for key in KEYS[:10]:
        add(1, keyed, key)
    take()
    held = [add(1, keyed, key)[0] for key in KEYS[:10]]
    others = [add(1, keyed, key)[0] for key in KEYS[10:]]
    assert taken(10) == others
    assert waiting() == held
    assert ("slots", "slots") not in pairwise(done)


def test_a_claim_that_fails_after_it_has_closed_gates_looks_whether_their_slots_are_free(keyed, monkeypatch):
    """Else a job whose slot was freed in between would wait for the next sweep."""
    add(1, keyed, "a")
    take(1)
    add(1, keyed, "a")
    closed, blocked = [], []

    def fails_later(request):
        if blocked:
            raise DatabaseBusy("three deadlocks")
        found = select_then_update.select_then_update(request)
        blocked.extend(found.blocked)
        return found

    monkeypatch.setattr(claimer, "select_then_update", fails_later)
    monkeypatch.setattr(claimer, "recheck_closed", lambda subjects, **_: closed.extend(subjects))
    with pytest.raises(DatabaseBusy):
        take(1)
    assert closed == [slot_subject("q", keyed.module_path, b"a").number]


def test_full_keys_ahead_do_not_stop_a_claim_of_one_job(keyed):
    for key in KEYS:
        add(1, keyed, key)
    take()
    for key in KEYS:
        add(1, keyed, key)
    (free,) = add(1, keyed, "free")
    assert taken(1) == [free]
    assert len(waiting()) == len(KEYS)


def test_empty_buckets_ahead_do_not_stop_a_claim_of_one_job(own_registry):
    paced = task(queue_name="q", concurrency_key=jobs.by_argument, rate_limit="1/m")(jobs.work)
    for key in KEYS:
        add(2, paced, key)
    take()
    assert len(waiting()) == len(KEYS)
    for key in KEYS:
        add(1, paced, key)
    (free,) = add(1, paced, "free")
    assert taken(1) == [free]
