"""inject() gives the errors that the database really gives, at the statement that was asked for."""

from datetime import timedelta

import pytest
from django.db import Error, OperationalError, connection, transaction

from jobqueue.db import retry, vendor
from jobqueue.db.dialect import GONE_KINDS
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.models import Job
from jobqueue.testing import drain, inject, run_task
from jobqueue.transitions import ack, claim, release
from tests.app import kit
from tests.app.models import Ticket
from tests.factories import job, make_job, state
from tests.marks import committed
from tests.settings import VENDOR

FAULTS = {"deadlock": False, "lock_timeout": False, "lost_connection": True}
CODES = {
    "deadlock": {"mysql": 1213, "mariadb": 1213, "postgres": "40P01", "sqlite": "SQLITE_BUSY"},
    "lock_timeout": {"mysql": 1205, "mariadb": 1205, "postgres": "55P03", "sqlite": "SQLITE_BUSY"},
    "lost_connection": {"mysql": 2013, "mariadb": 2013, "postgres": None, "sqlite": "SQLITE_IOERR"},
}


def code(error):
    """The driver's own."""
    cause = error.__cause__
    if VENDOR == "postgres":
        return cause.sqlstate
    return cause.sqlite_errorname if VENDOR == "sqlite" else cause.args[0]


@pytest.mark.django_db
@pytest.mark.parametrize("kind", FAULTS)
def test_the_error_is_of_the_real_class_with_the_real_code(kind):
    with pytest.raises(OperationalError) as caught, inject(kind):
        Ticket.objects.count()
    assert code(caught.value) == CODES[kind][VENDOR]
    assert vendor("default").error_kind(caught.value) is not None
    assert (vendor("default").error_kind(caught.value) in GONE_KINDS) is FAULTS[kind]
    assert Ticket.objects.count() == 0, "the test's own transaction goes on"


@pytest.mark.django_db
def test_it_comes_at_the_statement_that_was_asked_for():
    with inject("deadlock", at=3) as injected:
        Ticket.objects.count()
        Ticket.objects.count()
        assert injected.count == 0
        with pytest.raises(OperationalError):
            Ticket.objects.exists()
        Ticket.objects.count()
    assert (injected.count, "LIMIT 1" in injected.statements[0]) == (1, True)
    with inject("deadlock", at="^update .*ticket", times=None) as injected:
        Ticket.objects.count()
        for _ in range(2):
            with pytest.raises(OperationalError), transaction.atomic():
                Ticket.objects.update(sold=True)
    assert injected.count == 2
    with inject("deadlock", at=lambda sql: "nothing" in sql) as injected:
        Ticket.objects.count()
    assert injected.count == 0


@pytest.mark.django_db
def test_a_job_that_meets_a_deadlock_is_retried(sold):
    kit.sells.enqueue("a")
    with inject("deadlock", at="insert into .*ticket"):
        drained = drain()
    assert [run.outcome for run in drained.runs] == ["retry"]
    assert (job(drained.runs[0].job_id).attempts, sold()) == (1, [])


@committed
def test_the_queue_itself_redoes_what_was_refused():
    job_id = make_job()
    before = sum(retry.retries.values())
    for kind in FAULTS:
        with inject(kind, at="update .*job_queue") as injected:
            [lease] = claim("q", worker="w")
        assert injected.count == 1
        release(lease)
    [lease] = claim("q", worker="w")
    with inject("lost_connection", at="update .*job_queue", answer_lost=True):
        ack(lease)
    assert state(job_id) == "DONE"
    assert sum(retry.retries.values()) == before + 4


@committed
def test_a_deadlock_undoes_the_transaction_as_on_the_server():
    """Who catches it inside the block and goes on has lost what came before, or cannot go on."""
    swallowed = []
    try:
        with transaction.atomic():
            Ticket.objects.create(number="a")
            try:
                with inject("deadlock"), connection.cursor() as cursor:
                    cursor.execute("SELECT 1")
            except OperationalError:
                swallowed.append(True)
            Ticket.objects.create(number="b")
    except Exception:
        assert VENDOR == "postgres"
    found = list(Ticket.objects.values_list("number", flat=True))
    assert swallowed
    assert found == {"postgres": [], "sqlite": ["a", "b"]}.get(VENDOR, ["b"])


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no session that could be lost")
def test_a_lost_connection_is_gone_until_it_is_closed():
    with pytest.raises(OperationalError), inject("lost_connection"):
        Ticket.objects.count()
    with pytest.raises(Error):
        Ticket.objects.count()
    connection.close()
    assert Ticket.objects.count() == 0


@committed
def test_exactly_once_holds_when_the_answer_to_the_last_write_is_lost(sold):
    with inject("lost_connection", at="update .*job_queue.*finished_at", answer_lost=True) as injected:
        with pytest.raises(OperationalError):
            run_task(kit.finishes, "a")
    assert injected.count == 1
    assert (sold(), Job.objects.get().attempts) == ([], 1)
    assert drain(until=timedelta(minutes=1)).ok == 1
    assert sold() == ["a"]


@pytest.mark.django_db
def test_bad_arguments_are_refused():
    for bad in ({"kind": "flood"}, {"kind": "deadlock", "at": 0}, {"kind": "deadlock", "times": 0}):
        with pytest.raises(InvalidValue), inject(**bad):
            pass
    with pytest.raises(InvalidType), inject("deadlock", at=1.5):
        pass
