"""set_limit() and clear_limit(): limits that change while jobs run and wait, stronger than those of the code."""

import pytest
from django.db import transaction

from jobqueue.flow import KEEP, Limit, clear_limit, limits, pause, resume, set_limit
from jobqueue.gates.rules import forget_rules
from jobqueue.models import FlowRule
from jobqueue.testing import travel
from jobqueue.transitions import ack, ack_many
from tests.factories import make_jobs
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, sweep, take, taken, waiting
from tests.marks import finding

pytestmark = pytest.mark.django_db


class TestTheLimitOfATask:
    def test_may_be_set_where_the_code_has_none(self, plain):
        ids = add(5, plain)
        set_limit("q", task=plain, concurrency=2)
        assert taken() == ids[:2]
        assert taken() == []

    def test_is_stronger_than_that_of_the_code(self, limited):
        work = limited(concurrency_limit=1)
        ids = add(5, work)
        set_limit("q", task=work, concurrency=3)
        assert taken() == ids[:3]

    def test_may_be_taken_away(self, limited):
        work = limited(concurrency_limit=1, rate_limit="1/m")
        ids = add(5, work)
        set_limit("q", task=work, concurrency=None, rate=None)
        assert taken() == ids

    def test_that_is_raised_lets_jobs_start_that_wait(self, limited):
        work = limited(concurrency_limit=1)
        ids = add(5, work)
        assert taken() == ids[:1]
        assert taken() == []
        set_limit("q", task=work, concurrency=3)
        open_in_time()
        assert taken() == ids[1:3]
        assert waiting() == ids[3:]

    def test_that_is_taken_away_lets_all_jobs_start_that_wait(self, limited):
        work = limited(concurrency_limit=1)
        ids = add(5, work)
        assert taken() == ids[:1]
        assert taken() == []
        set_limit("q", task=work, concurrency=None)
        open_in_time()
        assert taken() == ids[1:]

    def test_that_is_lowered_lets_no_job_start_before_enough_have_ended(self, limited):
        work = limited(concurrency_limit=3)
        ids = add(6, work)
        leases = list(take().values())
        set_limit("q", task=work, concurrency=1)
        for lease in leases[:2]:
            ack(lease)
            open_in_time()
            assert taken() == []
        ack(leases[2])
        assert taken() == ids[3:4]
        assert taken() == []

    def test_that_is_lowered_and_raised_again_counts_those_that_run(self, limited):
        work = limited(concurrency_limit=3)
        ids = add(6, work)
        leases = take()
        set_limit("q", task=work, concurrency=1)
        ack(leases[ids[0]])
        set_limit("q", task=work, concurrency=3)
        open_in_time()
        assert taken() == ids[3:4]
        assert taken() == []

    def test_of_0_starts_nothing_until_it_is_cleared(self, limited):
        work = limited(concurrency_limit=2)
        ids = add(3, work)
        set_limit("q", task=work, concurrency=0)
        assert taken() == []
        assert waiting() == ids
        assert clear_limit("q", task=work) is True
        open_in_time()
        assert taken() == ids[:2]

    def test_holds_in_one_queue(self, plain):
        ids = add(2, plain)
        there = add(2, plain.using(queue_name="elsewhere"))
        set_limit("q", task=plain, concurrency=1)
        assert taken() == ids[:1]
        assert taken(queue="elsewhere") == there

    def test_is_that_of_each_key_if_the_task_has_one(self, limited):
        work = limited(concurrency_key=jobs.by_argument, concurrency_limit=1)
        a1, a2, _, b1 = (int(work.enqueue(key).id) for key in "aaab")
        set_limit("q", task=work, concurrency=2)
        assert taken() == [a1, a2, b1]

    def test_binds_jobs_of_a_task_that_this_process_does_not_know(self, plain, monkeypatch):
        ids = add(2, plain)
        set_limit("q", task=plain, concurrency=1)
        monkeypatch.setattr("jobqueue.tasks.registry.find_task", lambda path: None)
        assert taken() == ids[:1]


class TestTheRateOfATask:
    def test_may_be_set_and_cleared(self, plain):
        ids = add(5, plain)
        set_limit("q", task=plain, rate="2/s")
        with travel(0):
            assert taken() == ids[:2]
            assert taken() == []
            assert clear_limit("q", task=plain) is True
            open_in_time()
            assert taken() == ids[2:]

    def test_that_becomes_faster_counts_at_once(self, limited):
        work = limited(rate_limit="1/h")
        ids = add(5, work)
        with travel(0) as clock:
            assert taken() == ids[:1]
            assert taken() == []
            set_limit("q", task=work, rate="10/s")
            open_in_time()
            early = taken()
            assert len(early) <= 1, "a bucket begins empty after a slower rate"
            clock.forward(0.25)
            open_in_time()
            # The clock goes on by itself, too: that is a long time on a busy machine.
            assert 2 <= len(early + taken()) <= 4

    def test_that_becomes_slower_counts_at_once(self, limited):
        work = limited(rate_limit="10/s")
        ids = add(30, work)
        with travel(0) as clock:
            assert taken() == ids[:10]
            set_limit("q", task=work, rate="1/m")
            clock.forward(30)
            open_in_time()
            assert len(taken()) <= 1
            clock.forward(25)
            open_in_time()
            assert taken() == []

    @pytest.mark.parametrize("none", [0, "0"])
    def test_of_0_starts_nothing_until_another_is_set(self, plain, none):
        ids = add(2, plain)
        set_limit("q", task=plain, rate=none)
        assert taken() == []
        with travel(7 * 86400):
            forget_rules()
            open_in_time()
            assert taken() == []
        set_limit("q", task=plain, rate=None)
        open_in_time()
        assert taken() == ids

    def test_and_its_concurrency_are_set_one_by_one(self, limited):
        work = limited(concurrency_limit=4, rate_limit="3/s")
        ids = add(6, work)
        set_limit("q", task=work, concurrency=2)
        with travel(0):
            assert taken() == ids[:2]
        set_limit("q", task=work, rate=None)
        assert limits() == [Limit("q", jobs.WORK, 2, None)]


class TestTheLimitOfAQueue:
    def test_binds_all_of_its_jobs(self, limited):
        (task_job,) = add(1, limited())
        raw = make_jobs(3)
        set_limit("q", concurrency=2)
        leases = take()
        assert list(leases) == [task_job, raw[0]]
        assert taken() == []
        ack(leases[task_job])
        assert taken() == raw[1:2]

    def test_closes_no_gates(self):
        make_jobs(5)
        set_limit("q", concurrency=1)
        taken()
        taken()
        assert waiting() == []

    def test_is_stronger_than_that_of_the_settings_until_it_is_cleared(self, settings):
        settings.JOBQUEUE = {"QUEUES": {"q": {"CONCURRENCY": 1}}}
        ids = make_jobs(6)
        set_limit("q", concurrency=3)
        leases = take()
        assert list(leases) == ids[:3]
        assert clear_limit("q") is True
        ack_many(list(leases.values()))
        assert taken() == ids[3:4]
        assert taken() == []

    def test_may_take_that_of_the_settings_away(self, settings):
        settings.JOBQUEUE = {"QUEUES": {"q": {"CONCURRENCY": 1, "RATE": "1/h"}}}
        ids = make_jobs(3)
        set_limit("q", concurrency=None, rate=None)
        assert taken() == ids

    def test_of_0_is_a_pause_of_one_row(self):
        ids = make_jobs(3)
        set_limit("q", concurrency=0)
        assert taken() == []
        assert waiting() == []
        set_limit("q", concurrency=None)
        assert taken() == ids

    def test_may_be_set_for_a_rate_of_0_too(self):
        ids = make_jobs(2)
        set_limit("q", rate=0)
        assert taken() == []
        clear_limit("q")
        assert taken() == ids

    def test_does_not_end_with_a_pause(self):
        ids = make_jobs(3)
        set_limit("q", concurrency=1)
        pause("q", reason="r")
        resume("q")
        assert taken() == ids[:1]
        assert limits() == [Limit("q", None, 1, KEEP)]


def test_limits_tells_what_was_set_and_nothing_else(limited):
    work = limited(concurrency_limit=5)
    set_limit("q", task=work, rate=" 100/m ")
    set_limit("b", concurrency=None)
    set_limit("a", concurrency=4, rate="1/s")
    assert limits() == [Limit("a", None, 4, "1/s"), Limit("b", None, None, KEEP), Limit("q", jobs.WORK, KEEP, "100/m")]


def test_clear_limit_is_false_where_none_was_set(plain):
    assert clear_limit("q") is False
    assert clear_limit("q", task=plain) is False
    set_limit("q", concurrency=1)
    assert clear_limit("q", task=plain) is False
    assert clear_limit("q") is True
    assert clear_limit("q") is False
    assert limits() == []


def test_a_limit_is_undone_with_the_transaction_of_its_caller(plain):
    ids = add(3, plain)
    with transaction.atomic():
        set_limit("q", task=plain, concurrency=1)
        transaction.set_rollback(True)
    forget_rules()
    assert limits() == []
    assert taken() == ids


def test_a_limit_by_another_process_counts_when_the_rules_are_read_again(plain):
    ids = add(3, plain)
    assert taken(1) == ids[:1]
    FlowRule.objects.create(queue="q", task=jobs.WORK, sets_concurrency=True, concurrency=1)
    forget_rules()
    assert taken() == [], "a job that began before its task had any limit counts too"
    assert ids[1:] == waiting()


def test_the_end_of_a_job_that_began_before_the_limit_lets_the_next_one_start(plain):
    add(3, plain)
    (lease,) = take(1).values()
    set_limit("q", task=plain, concurrency=1)
    assert taken() == []
    ack(lease)
    assert len(taken()) == 1


def test_jobs_that_began_before_a_limit_are_not_opened_and_closed_for_until_they_end(plain):
    add(8, plain)
    assert len(taken(5)) == 5
    set_limit("q", task=plain, concurrency=3)
    for _ in range(4):
        assert taken() == []
        sweep()
        assert len(waiting()) == 3


def test_a_limit_that_nothing_reaches_costs_no_more_than_a_small_one(plain):
    set_limit("q", task=plain, concurrency=2**31 - 1)
    ids = add(2, plain)
    assert taken() == ids


class TestLeasesThatBeganWhileThereWasNoLimit:
    """Or under a release without it."""

    @pytest.fixture
    def lifted(self, limited):
        """A task with a limit of each key, which is lifted; four of its jobs run, with the key "a"."""
        work = limited(concurrency_key=jobs.by_argument, concurrency_limit=5)
        set_limit("q", task=work, concurrency=None)
        add(4, work, "a")
        self.running = list(take().values())
        assert [lease.slot for lease in self.running] == [None] * 4
        return work

    @finding("F3")
    def test_count_against_the_limit_of_their_key(self, lifted):
        set_limit("q", task=lifted, concurrency=1)
        (later,) = add(1, lifted, "a")
        (other,) = add(1, lifted, "b")
        assert taken() == [other]
        look_again()
        sweep()
        assert taken() == []
        for lease in self.running:
            assert taken() == []
            ack(lease)
        assert taken() == [later]

    @finding("F3")
    def test_leave_room_under_a_limit_above_their_number(self, lifted):
        set_limit("q", task=lifted, concurrency=5)
        first, _ = add(2, lifted, "a")
        assert taken() == [first]

    def test_of_a_key_do_not_count_for_the_jobs_without_a_key(self, lifted):
        set_limit("q", task=lifted, concurrency=1)
        (keyless,) = add(1, lifted, "")
        assert taken() == [keyless]
