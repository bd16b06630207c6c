"""Real relays, and subscribers that hang or are slower than the lease."""

import json
import re
import signal

import pytest

from jobqueue.models import OutboxEvent
from jobqueue.outbox import dead_letters
from tests.app import tasks
from tests.app.models import Account
from tests.factories import seconds_from_now, state
from tests.marks import committed, finding
from tests.outbox.helpers import event, say
from tests.patience import patient, wait_until
from tests.settings import VENDOR

pytestmark = committed
HELD_BRIEFLY = {"JOBQUEUE_TEST_HELD_SECONDS": "1"}


@pytest.fixture
def relays(start):
    """Start this many relay_outbox processes with these settings of the outbox."""

    def run(count=1, options=(), environment=None, **settings):
        environment = {"JOBQUEUE_TEST_OUTBOX": json.dumps(settings)} | (environment or {})
        return [start("relay_outbox", "--interval", "50ms", *options, **environment) for _ in range(count)]

    return run


@pytest.fixture
def begun(evidence):
    """begun(event_id): the (attempt, pid) of each call of a subscriber with it."""
    return lambda event_id: [
        tuple(map(int, words)) for _, number, *words in evidence.read("began") if int(number) == event_id
    ]


def lease_seconds():
    """Short, and with other relays about that would take what a busy machine was late to renew."""
    return patient(0.6)


def outlasts_its_lease(event_id, begun):
    """Wait until a delivery has taken longer than the lease with which it began, which was renewed."""
    wait_until(lambda: begun(event_id), what="the delivery")
    end = event(event_id).due_at
    wait_until(lambda: seconds_from_now(end) < 0, what="the end of the first lease")
    assert event(event_id).due_at > end


def delivered(*ids):
    return OutboxEvent.objects.filter(pk__in=ids, processed_at__isnull=False).count() == len(ids)


def fine_ones(count=20):
    return [say("fine", n, f"k{n}") for n in range(count)]


@finding("H1")
@pytest.mark.parametrize("kind", ["hang", "hang_deaf"])
def test_a_subscriber_that_hangs_keeps_one_relay_and_the_others_deliver_all_the_rest(relays, begun, kind):
    hung = say(f"odd.{kind}", key="h")
    groups = relays(2, LEASE_SECONDS=lease_seconds())
    wait_until(lambda: any("has been under way for" in group.text() for group in groups), what="a word about it")
    assert delivered(hung) is False
    ids = fine_ones()
    wait_until(lambda: delivered(*ids), what="the delivery of the others")
    assert len(begun(hung)) == 1, "a second relay was given the event, and hangs too"


@finding("H1")
def test_the_rest_of_a_batch_goes_to_other_relays_while_one_delivery_hangs(relays, begun):
    # The lowest id of a batch is sent first.
    hung, others = say("odd.hang", key="h"), fine_ones()
    relays(2, LEASE_SECONDS=7200)
    wait_until(lambda: delivered(*others), what="the delivery of the others")
    assert len(begun(hung)) == 1
    assert {event(number).attempts for number in others} == {0}


@finding("H1")
@pytest.mark.parametrize("kind", ["hang", "hang_deaf"])
def test_sigterm_ends_a_relay_whose_subscriber_hangs_and_its_event_goes_back_without_a_charge(relays, begun, kind):
    hung = say(f"odd.{kind}", key="h")
    (group,) = relays(LEASE_SECONDS=7200, options=("--shutdown-timeout", "1s"))
    wait_until(lambda: begun(hung), what="the delivery")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    row = event(hung)
    assert (row.attempts, row.lock_token) == (0, None)
    assert seconds_from_now(row.due_at) < 5
    group.prints("no attempt is counted")


@finding("H1")
def test_a_second_sigterm_ends_a_relay_at_once_whatever_its_subscriber_does(relays, begun):
    hung = say("odd.hang_deaf", key="h")
    (group,) = relays()
    wait_until(lambda: begun(hung), what="the delivery")
    assert group.wait_told_again(signal.SIGTERM) == 128 + signal.SIGTERM


@finding("H1")
def test_a_subscriber_that_is_slower_than_the_lease_runs_once(relays, begun, gate):
    slow = say("odd.be_slow", {"gate": str(gate)}, "s")
    later = say("fine", key="s")
    relays(3, LEASE_SECONDS=lease_seconds(), MAX_ATTEMPTS=2)
    outlasts_its_lease(slow, begun)
    gate.touch()
    wait_until(lambda: delivered(slow, later), what="the delivery")
    assert len(begun(slow)) == 1
    assert event(slow).attempts == 0


@finding("H1")
@pytest.mark.parametrize("kind", ["hang", "hang_deaf"])
def test_after_delivery_seconds_the_event_is_charged_and_the_relay_begins_anew(relays, begun, kind):
    hung = say(f"odd.{kind}", key="h")
    behind = say("fine", key="h")
    (group,) = relays(LEASE_SECONDS=30, DELIVERY_SECONDS=1, MAX_ATTEMPTS=2, ON_KEY_FAILURE="skip")
    wait_until(lambda: begun(hung), what="the delivery")
    ids = [*fine_ones(), behind]
    wait_until(lambda: delivered(*ids), what="the delivery of the others")
    assert begun(hung) == [(1, group.pid), (2, group.pid)], "a process manager has to see one process"
    row = event(hung)
    assert (row.attempts, [found.pk for found in dead_letters()]) == (2, [hung])
    assert "DELIVERY_SECONDS" in row.last_error
    assert "time.sleep" in row.last_error, "where it hung"
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


@finding("H1")
def test_a_relay_whose_subscriber_keeps_the_interpreter_to_itself_ends(relays, begun):
    held = say("odd.keep_the_interpreter", key="h")
    (group,) = relays(LEASE_SECONDS=1, DELIVERY_SECONDS=1, MAX_ATTEMPTS=1, environment=HELD_BRIEFLY)
    assert group.wait() == 1
    group.prints("keep_the_interpreter")
    ids = fine_ones()
    relays(LEASE_SECONDS=lease_seconds(), MAX_ATTEMPTS=1)
    wait_until(lambda: delivered(*ids) and dead_letters().exists(), what="all the rest")
    assert len(begun(held)) == 1


@finding("H1")
def test_an_atomic_subscriber_that_hangs_is_charged_and_its_transaction_undone(relays, begun):
    hung = say("atomic.hang", key="h")
    relays(LEASE_SECONDS=30, DELIVERY_SECONDS=1, MAX_ATTEMPTS=2)
    wait_until(lambda: begun(hung), what="the delivery")
    ids = fine_ones()
    wait_until(lambda: delivered(*ids) and dead_letters().exists(), what="the delivery of the others")
    assert (len(begun(hung)), event(hung).attempts) == (2, 2)
    assert not Account.objects.exists()


def test_an_atomic_subscriber_that_is_slower_than_the_lease_runs_once(relays, begun, gate):
    slow = say("atomic.be_slow", {"gate": str(gate)}, "s")
    relays(3, LEASE_SECONDS=1, MAX_ATTEMPTS=2)
    wait_until(lambda: begun(slow), what="the delivery")
    # Its transaction has locked the row, so nobody renews the lease.
    end = event(slow).due_at
    wait_until(lambda: seconds_from_now(end) < -1, what="the end of its lease")
    gate.touch()
    wait_until(lambda: delivered(slow), what="the delivery")
    assert len(begun(slow)) == 1
    assert Account.objects.count() == 1


@finding("H1")
@pytest.mark.parametrize("topic", ["odd.hang", "atomic.hang"])
def test_the_relay_of_a_worker_goes_on_behind_a_subscriber_that_hangs_and_so_do_its_jobs(worker, begun, topic):
    hung = say(topic, key="h")
    settings = json.dumps({"LEASE_SECONDS": 30, "DELIVERY_SECONDS": 1, "MAX_ATTEMPTS": 2})
    group = worker("--concurrency", 2, JOBQUEUE_TEST_OUTBOX=settings)
    wait_until(lambda: begun(hung), what="the delivery")
    job_id, ids = tasks.add.enqueue(1, 2).id, fine_ones()
    wait_until(lambda: delivered(*ids) and state(job_id) == "DONE" and dead_letters().exists(), what="all the rest")
    assert len({pid for _, pid in begun(hung)}) == 1, "the same process"
    assert not Account.objects.exists()
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


@finding("H1")
def test_the_end_of_a_worker_gives_back_what_its_relay_hangs_in_without_a_charge(worker, begun):
    hung = say("odd.hang", key="h")
    group = worker(JOBQUEUE_TEST_OUTBOX=json.dumps({"LEASE_SECONDS": 7200}))
    wait_until(lambda: begun(hung), what="the delivery")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    row = event(hung)
    assert (row.attempts, row.lock_token) == (0, None)


@finding("H1")
def test_a_worker_with_many_threads_that_hang_in_deliveries_is_replaced_when_its_jobs_have_ended(worker, begun):
    hung = [say("odd.hang", key=f"h{n}") for n in range(3)]
    settings = json.dumps({"LEASE_SECONDS": 30, "DELIVERY_SECONDS": 1, "MAX_ATTEMPTS": 1})
    group = worker(JOBQUEUE_TEST_OUTBOX=settings)
    wait_until(lambda: "this worker process is replaced" in group.text(), what="a word about it")
    (before,) = {pid for number in hung for _, pid in begun(number)}

    def is_replaced():
        (number,) = fine_ones(1)
        wait_until(lambda: delivered(number), what="the delivery of another")
        return before not in [pid for _, pid in begun(number)]

    wait_until(is_replaced, what="a delivery by a new process")
    assert [len(begun(number)) for number in hung] == [1, 1, 1]


LEAKS = ["leave_a_block", "turn_autocommit_off", "begin_by_hand", "fail_in_a_transaction_by_hand"]
LOCKS = pytest.param(
    "odd.lock_tables", marks=pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="they have LOCK TABLES")
)


@finding("M12")
@pytest.mark.parametrize("topic", [*(f"odd.{leak}" for leak in LEAKS), "atomic.leave_a_block", LOCKS])
def test_what_a_subscriber_leaves_open_is_undone_and_charged_to_its_event_alone(relays, begun, topic):
    bad, others = say(topic, key="b"), fine_ones()
    (group,) = relays(MAX_ATTEMPTS=1)
    wait_until(lambda: delivered(*others) and dead_letters().exists(), what="the delivery of the others")
    later = fine_ones(3)
    wait_until(lambda: delivered(*later), what="the delivery of later ones")
    assert [found.pk for found in dead_letters()] == [bad]
    assert ("before its COMMIT" if "fail" in topic else "LeftOpen") in event(bad).last_error
    assert {len(begun(number)) for number in [bad, *others, *later]} == {1}, "an event has lost its mark"
    assert not Account.objects.exists()
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


@pytest.mark.parametrize(
    ("options", "begins"),
    [
        ([], "{"),
        (["--log-format", "auto"], "{"),
        (["--log-format", "json"], "{"),
        (["--log-format", "text"], "[0-9:.]+ "),
    ],
)
def test_log_lines_have_the_form_that_is_asked_for_and_where_nobody_looks_they_are_json(relays, options, begins):
    (relay,) = relays(options=["--drain", *options])
    assert relay.wait() == 0
    assert re.match(f"{begins}.*relaying the outbox of 'default'", relay.text()), relay.text()
