"""Sessions in which Django does not commit: autocommit is off, and the caller ends the transaction."""

import pytest
from django.db import OperationalError, connection, transaction

from jobqueue import enqueue, enqueue_many
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InsideTransaction, OutcomeUnknown
from jobqueue.models import Job
from jobqueue.transitions import ack, claim, reap
from tests.factories import claim_one, make_job, set_columns, state
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = committed
in_a_statement = pytest.mark.skipif(
    VENDOR not in ("mysql", "mariadb"), reason="elsewhere no statement turns autocommit on that could fail"
)


@pytest.fixture
def by_hand():
    """Autocommit is off; what is left open is rolled back."""
    transaction.set_autocommit(False)
    yield
    if not connection.get_autocommit():
        transaction.rollback()
        transaction.set_autocommit(True)


def test_claim_refuses_what_it_could_not_commit(by_hand):
    job_id = enqueue("q", 1)
    transaction.commit()
    with pytest.raises(InsideTransaction):
        claim("q", worker="w")
    assert state(job_id) == "READY"


def test_enqueue_is_part_of_the_callers_transaction(by_hand):
    enqueue("q", 1)
    transaction.rollback()
    assert not Job.objects.exists()


def test_a_settling_verb_is_part_of_the_callers_transaction():
    job_id = make_job()
    lease = claim_one()
    transaction.set_autocommit(False)
    try:
        assert Job.objects.count() == 1
        ack(lease)
        reap()
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert state(job_id) == "PROCESSING"


def test_nothing_is_redone_in_the_callers_transaction(by_hand):
    """After a deadlock the caller's earlier statements are gone: only he can begin again."""
    calls = []

    def refused():
        calls.append(1)
        raise OperationalError(1213, "database is locked")

    enqueue("q", 1)
    with pytest.raises(OperationalError):
        retry_transient("bulk", refused, using="default")
    assert len(calls) == 1


def test_a_mad_lease_in_one_row_does_not_stop_the_queue():
    mad, good = make_job(), make_job()
    set_columns(mad, lease_seconds=1e18)
    assert [lease.job_id for lease in claim("q", 2, worker="w")] == [mad, good]


@pytest.fixture
def refuse_autocommit(monkeypatch):
    """Call it, and Django cannot turn autocommit on again after the next transaction."""
    connection.ensure_connection()
    refused = []
    really = connection._set_autocommit

    def set_autocommit(on):
        if on and refused:
            raise refused.pop()
        really(on)

    monkeypatch.setattr(connection, "_set_autocommit", set_autocommit)
    yield lambda: refused.append(OperationalError(1317, "Query execution was interrupted"))
    assert refused == []


@in_a_statement
def test_what_follows_a_commit_after_which_autocommit_stayed_off_is_committed(refuse_autocommit):
    refuse_autocommit()
    first = enqueue("q", 1, dedupe_key="k")
    second = enqueue("q", 2)
    connection.close()
    assert {state(first), state(second)} == {"READY"}
    assert Job.objects.count() == 2


@in_a_statement
def test_a_caller_whose_commit_may_have_happened_is_told_so(refuse_autocommit):
    refuse_autocommit()
    with pytest.raises(OutcomeUnknown):
        enqueue_many("q", [1, 2])
    connection.close()
    assert Job.objects.count() == 2
    assert claim_one().fence == 1
