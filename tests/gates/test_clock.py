"""The database's clock jumps: no negative bucket, no burst above one bucket, no job that waits for the old time."""

from datetime import timedelta

import pytest

from jobqueue.db.clock import UtcNowPlus
from jobqueue.flow import set_limit
from jobqueue.gates import breaker as machine
from jobqueue.gates.breaker import Run
from jobqueue.gates.rules import forget_rules
from jobqueue.models import BreakerState, Gate, Job
from jobqueue.testing import travel
from tests.factories import make_jobs, now
from tests.gates import jobs
from tests.gates.helpers import add, open_in_time, sweep, taken, waiting

pytestmark = pytest.mark.django_db
DAY = 86_400.0


def new_time():
    """What happens within a minute after the clock was set."""
    forget_rules()
    sweep()
    open_in_time()


@pytest.fixture
def paced(limited):
    return limited(rate_limit="3/s")


def test_a_clock_that_is_set_back_gives_no_second_burst(paced):
    with travel(DAY):
        ids = add(3, paced)
        assert taken() == ids
    Job.objects.update(run_at=UtcNowPlus(-1))
    add(10, paced.using(priority=1))
    assert taken() == []


def test_a_clock_that_is_set_back_stops_nobody_for_longer_than_a_minute(paced):
    ids = add(8, paced)
    with travel(DAY):
        assert taken() == ids[:3]
        assert taken() == []
    with travel(0) as clock:
        new_time()
        clock.forward(1.1)
        open_in_time()
        assert taken() == ids[3:6]
        clock.forward(1.1)
        open_in_time()
        assert taken() == ids[6:]


def test_a_clock_that_goes_ahead_gives_one_bucket(paced):
    ids = add(20, paced)
    with travel(0) as clock:
        assert taken() == ids[:3]
        assert taken() == []
        clock.forward(DAY)
        new_time()
        assert taken() == ids[3:6]
        assert taken() == []


def test_no_bucket_is_ever_used_beyond_its_size(paced):
    add(30, paced)
    for seconds in (0, DAY, 5, 10 * DAY, 0):
        with travel(seconds):
            new_time()
            assert len(taken()) <= 3
            used_until = Gate.objects.exclude(used_until=None).get().used_until
            ahead = used_until - now()
            assert timedelta(seconds=-1) <= ahead or not taken()
            assert ahead <= timedelta(seconds=1.1) or seconds == 0


def test_the_rate_of_a_whole_queue_survives_a_clock_that_is_set_back():
    set_limit("q", rate="2/s")
    ids = make_jobs(6)
    with travel(DAY):
        assert taken() == ids[:2]
    with travel(0) as clock:
        new_time()
        assert taken() == []
        clock.forward(1.1)
        assert taken() == ids[2:4]


def test_a_slow_rate_waits_one_period_and_not_until_the_old_time(limited):
    ids = add(3, limited(rate_limit="1/m"))
    with travel(30 * DAY):
        assert taken() == ids[:1]
        assert taken() == []
    with travel(0) as clock:
        new_time()
        assert taken() == []
        clock.forward(61)
        open_in_time()
        assert taken() == ids[1:2]


def test_a_sweep_is_enough_for_the_next_token_to_come_one_period_later(limited):
    ids = add(3, limited(rate_limit="1/s"))
    with travel(3600):
        assert taken() == ids[:1]
        assert taken() == []
    with travel(0) as clock:
        sweep()
        clock.forward(1.01)
        open_in_time()
        assert taken() == ids[1:2]


def test_a_clock_that_is_set_back_by_seconds_delays_no_token_longer_than_the_next_sweep(limited):
    ids = add(3, limited(rate_limit="1/s"))
    with travel(40):
        assert taken() == ids[:1]
        assert taken() == []
    with travel(0) as clock:
        new_time()
        clock.forward(1.01)
        open_in_time()
        assert taken() == ids[1:2]


def test_slots_know_no_time(limited):
    ids = add(3, limited(concurrency_limit=2))
    with travel(DAY):
        assert taken() == ids[:2]
        assert taken() == []
    new_time()
    assert taken() == []
    assert waiting() == ids[2:]


class TestABreaker:
    @pytest.fixture
    def stripe(self, limited):
        return limited(jobs.calls, dependency="stripe")

    def fail(self, calls):
        machine.failed("stripe", [[Run(n, 1, 0.5, 0.0)] for n in range(calls)], using="default")

    def test_that_opened_in_the_wrong_time_probes_in_the_right_one(self, stripe):
        with travel(DAY):
            self.fail(5)
            add(2, stripe)
            Job.objects.update(run_at=UtcNowPlus(-2 * DAY))
            assert taken() == []
        with travel(0) as clock:
            new_time()
            clock.forward(3)
            open_in_time()
            forget_rules()
            assert len(taken()) == 1

    def test_that_closed_in_the_wrong_time_opens_again_in_the_right_one(self, stripe):
        with travel(DAY):
            self.fail(5)
            machine.close("stripe", reason="by hand", using="default")
        self.fail(5)
        assert BreakerState.objects.get().state == "open"

    def test_whose_window_began_in_the_wrong_time_begins_a_new_one(self, stripe):
        with travel(DAY):
            self.fail(4)
        with travel(30):
            self.fail(1)
            assert BreakerState.objects.get().state == "closed"
