"""breaker(dependency): an operator opens and closes the circuit breaker."""

from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue.flow import breaker
from jobqueue.gates import breaker as machine
from jobqueue.gates.breaker import Run
from jobqueue.gates.rules import forget_rules
from jobqueue.signals import breaker_changed
from jobqueue.testing import travel
from jobqueue.transitions import ack
from tests.factories import job, now, set_columns
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, take, taken, waiting
from tests.marks import committed, finding

pytestmark = pytest.mark.django_db


@pytest.fixture
def stripe(limited):
    return limited(jobs.calls, dependency="stripe")


@pytest.fixture
def told():
    """What breaker_changed has told."""
    found = []

    def note(state, dependency, reason, **_):
        found.append((dependency, state, reason))

    breaker_changed.connect(note)
    yield found
    breaker_changed.disconnect(note)


def test_a_breaker_that_nobody_has_touched_is_closed():
    assert breaker("stripe").state == "closed"


def test_open_stops_the_jobs_of_the_dependency_until_close(stripe, told):
    ids = add(3, stripe)
    breaker("stripe").open("they announced maintenance")
    assert breaker("stripe").state == "open"
    assert taken() == []
    assert waiting() == ids
    assert breaker("stripe").close() is True
    assert breaker("stripe").state == "closed"
    open_in_time()
    assert taken() == ids
    assert told == [("stripe", "open", "they announced maintenance"), ("stripe", "closed", "closed by hand")]


def test_no_probe_is_made_while_it_is_open_by_hand(stripe):
    ids = add(2, stripe)
    breaker("stripe").open("maintenance")
    assert taken() == []
    with travel(0) as clock:
        for _ in range(5):
            clock.forward(600)
            forget_rules()
            look_again()
            assert taken() == []
    assert waiting() == ids


def test_until_ends_it_by_itself(stripe):
    ids = add(2, stripe)
    breaker("stripe").open("maintenance", until=now() + timedelta(hours=1))
    assert taken() == []
    with travel(3590):
        forget_rules()
        assert taken() == []
        assert breaker("stripe").state == "open"
    with travel(3610):
        forget_rules()
        assert breaker("stripe").state == "closed"
        open_in_time()
        assert taken() == ids


def test_jobs_that_waited_for_a_probe_start_when_the_time_of_the_operator_is_over(stripe):
    machine.failed("stripe", [[Run(n, 1, 1.0, 0.0)] for n in range(5)], using="default")
    ids = add(2, stripe)
    assert taken() == []
    breaker("stripe").open("maintenance", until=now() + timedelta(hours=1))
    with travel(3610):
        forget_rules()
        open_in_time()
        assert taken() == ids


def test_failures_count_again_after_until_has_passed(stripe):
    breaker("stripe").open("maintenance", until=now() + timedelta(seconds=10))
    with travel(60):
        machine.failed("stripe", [[Run(n, 1, 1.0, 0.0)] for n in range(5)], using="default")
        forget_rules()
        assert breaker("stripe").state == "open"
        assert machine.breaker_of("stripe", "default").by_hand is False


def test_close_ends_an_outage_that_the_workers_have_found(stripe):
    machine.failed("stripe", [[Run(n, 1, 1.0, 0.0)] for n in range(5)], using="default")
    assert breaker("stripe").state == "open"
    ids = add(2, stripe)
    assert taken() == []
    assert breaker("stripe").close() is True
    open_in_time()
    assert taken() == ids


def test_a_success_of_a_run_that_was_under_way_does_not_close_it(stripe):
    (job_id,) = add(1, stripe)
    lease = take()[job_id]
    breaker("stripe").open("maintenance")
    machine.succeeded("stripe", [Run(job_id, lease.fence, 1.0, 0.0)], using="default")
    ack(lease)
    assert breaker("stripe").state == "open"


def test_jobs_that_run_go_on(stripe):
    (job_id,) = add(1, stripe)
    lease = take()[job_id]
    breaker("stripe").open("maintenance")
    ack(lease, result="done")
    assert job(job_id).result == "done"


def test_close_of_a_closed_breaker_is_false(told):
    assert breaker("stripe").close() is False
    assert told == []


def test_open_is_undone_with_the_transaction_of_its_caller(stripe):
    ids = add(1, stripe)
    with transaction.atomic():
        breaker("stripe").open("maintenance")
        assert breaker("stripe").state == "open"
        transaction.set_rollback(True)
    forget_rules()
    assert breaker("stripe").state == "closed"
    assert taken() == ids


def test_two_dependencies_have_nothing_to_do_with_each_other(stripe, limited):
    breaker("stripe").open("maintenance")
    other = add(1, limited(jobs.other, dependency="Stripe"))
    assert taken() == other


def test_it_counts_for_a_process_that_names_the_dependency_in_its_settings_only(plain, settings):
    settings.JOBQUEUE = {"DEPENDENCIES": {"stripe": {"FAILURES": 2}}}
    ids = add(1, plain.using(dependency="stripe"))
    breaker("stripe").open("maintenance")
    assert taken() == []
    assert waiting() == ids


def test_it_stops_jobs_whose_rows_name_the_dependency_where_no_task_or_setting_does(plain):
    (by_sql,) = add(1, plain)
    set_columns(by_sql, dependency="stripe")
    breaker("stripe").open("outage")
    assert taken() == []


@finding("F13")
@committed
def test_what_a_transaction_changes_is_told_after_its_commit(told):
    with transaction.atomic():
        breaker("stripe").open("r")
        assert told == []
    assert told == [("stripe", "open", "r")]
    with suppress(RuntimeError), transaction.atomic():
        breaker("stripe").close()
        raise RuntimeError("undone")
    assert told == [("stripe", "open", "r")]
    assert breaker("stripe").state == "open"


def test_one_whose_time_is_over_is_told_to_have_ended_by_itself_when_it_is_closed_by_hand(told):
    with travel(0) as clock:
        breaker("stripe").open("r", until=now() + timedelta(seconds=2))
        clock.forward(3)
        assert not breaker("stripe").close()
    assert told[1:] == [("stripe", "closed", "its time is over")]
