"""Limits of a whole queue, CONCURRENCY and RATE: counted in one place for all workers, without a gate for any job."""

from collections import Counter

import pytest

from jobqueue.conf import load
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.flow import clear_limit, pause, set_limit
from jobqueue.gates.rules import forget_rules
from jobqueue.gates.slots import running
from jobqueue.maintenance import queue_levels
from jobqueue.maintenance.queue_levels import next_level
from jobqueue.models import FlowRule, Job
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE
from jobqueue.testing import travel
from jobqueue.transitions import ack, ack_many, fail, held_by, reap, release
from tests.factories import expire, make_due, make_jobs, set_columns
from tests.gates.helpers import add, take, taken, waiting
from tests.marks import finding

pytestmark = pytest.mark.django_db


@pytest.fixture
def queue(settings):
    """queue(...): the settings of queue "q"."""

    def configure(**own):
        settings.JOBQUEUE = {"QUEUES": {"q": own}}

    return configure


class TestConcurrency:
    def test_counts_the_jobs_of_all_claims(self, queue):
        queue(CONCURRENCY=3)
        ids = make_jobs(5)
        assert taken(2) == ids[:2]
        assert taken(2) == ids[2:3]
        assert taken(2) == []
        assert waiting() == []

    @pytest.mark.parametrize("end", [ack, release, lambda lease: fail(lease, error="x", delay_seconds=60)])
    def test_lets_as_many_start_as_have_ended(self, queue, end):
        queue(CONCURRENCY=2)
        make_jobs(5)
        leases = list(take().values())
        assert taken() == []
        end(leases[0])
        assert len(taken()) == 1
        assert taken() == []

    def test_counts_a_lease_that_has_run_out_until_it_is_reaped(self, queue):
        queue(CONCURRENCY=1)
        first, _ = make_jobs(2)
        expire(take()[first])
        assert taken() == []
        reap()
        assert taken() == [first]

    def test_counts_what_plain_sql_has_claimed(self, queue):
        queue(CONCURRENCY=1)
        first, _ = make_jobs(2)
        lease = {"locked_by": "other", "lock_token": b"x" * 16, "locked_at": UtcNow(), "lock_until": UtcNowPlus(60)}
        set_columns(first, status=Job.Status.PROCESSING, fence=1, **lease)
        assert taken() == []

    def test_of_0_in_the_settings_starts_nothing(self, queue):
        queue(CONCURRENCY=0)
        make_jobs(2)
        assert taken() == []

    def test_binds_its_queue_only(self, queue):
        queue(CONCURRENCY=1)
        make_jobs(2)
        there = make_jobs(2, queue="elsewhere")
        assert len(taken()) == 1
        assert taken(queue="elsewhere") == there

    def test_takes_the_highest_priority_first(self, queue):
        queue(CONCURRENCY=1)
        low = make_jobs(2)
        (high,) = make_jobs(1, priority=9)
        assert taken() == [high]
        assert running("q", 10, "default") == 1
        assert low[0] not in taken()

    def test_binds_beside_the_limit_of_a_task(self, queue, limited):
        queue(CONCURRENCY=3)
        work = limited(concurrency_limit=2)
        ids = [int(work.enqueue().id) for _ in range(4)]
        raw = make_jobs(4)
        assert taken() == [*ids[:2], raw[0]]
        assert taken() == []


class TestRate:
    def test_lets_a_bucket_start_and_then_one_after_another(self, queue):
        queue(RATE="2/s")
        ids = make_jobs(6)
        with travel(0) as clock:
            assert taken() == ids[:2]
            assert taken() == []
            clock.forward(0.55)
            assert taken() == ids[2:3]
            assert waiting() == []

    def test_of_a_minute_lets_one_job_start_at_a_time(self, queue):
        queue(RATE="6/m")
        ids = make_jobs(3)
        with travel(0) as clock:
            assert taken() == ids[:1]
            clock.forward(9.5)
            assert taken() == []
            clock.forward(0.6)
            assert taken() == ids[1:2]

    def test_uses_no_token_when_nothing_is_due(self, queue):
        queue(RATE="2/m")
        with travel(0):
            for _ in range(5):
                assert taken() == []
            ids = make_jobs(2)
            assert taken() == ids[:1]

    def test_and_concurrency_hold_together(self, queue):
        queue(RATE="3/s", CONCURRENCY=2)
        ids = make_jobs(6)
        with travel(0) as clock:
            leases = take()
            assert list(leases) == ids[:2]
            clock.forward(10)
            assert taken() == []
            ack_many(list(leases.values()))
            assert taken() == ids[2:4]

    def test_counts_retries_as_starts(self, queue):
        queue(RATE="1/m")
        (job_id,) = make_jobs(1)
        with travel(0) as clock:
            fail(take()[job_id], error="boom", delay_seconds=0)
            make_due(job_id)
            assert taken() == []
            clock.forward(61)
            assert taken() == [job_id]


class TestALevelBetweenBounds:
    def move(self, *, trouble=False):
        forget_rules()
        FlowRule.objects.update(updated_at="2020-01-01T00:00:00+00:00")
        moved = queue_levels.run_once(load(), using="default", in_trouble=lambda: trouble)["levels_moved"]
        forget_rules()
        return moved

    def test_begins_with_the_least(self, queue):
        queue(CONCURRENCY=(2, 10))
        ids = make_jobs(5)
        assert taken() == ids[:2]

    def test_rises_while_jobs_wait_and_all_slots_are_used_up_to_the_most(self, queue):
        queue(CONCURRENCY=(2, 4))
        ids = make_jobs(10)
        assert taken() == ids[:2]
        for expected in ([ids[2]], [ids[3]], []):
            self.move()
            assert taken() == expected

    def test_falls_when_nothing_waits(self, queue):
        queue(CONCURRENCY=(1, 8))
        make_jobs(8)
        for _ in range(10):
            taken()
            self.move()
        leases = held_by("w", using="default")
        assert len(leases) == 8
        ack_many(leases)
        for _ in range(12):
            self.move()
        ids = make_jobs(3)
        assert taken() == ids[:1]

    @finding("F11")
    @pytest.mark.parametrize("kind", ["held", "behind its key", "behind a gate", "of a paused task"])
    def test_falls_while_a_job_waits_for_something_else(self, queue, limited, kind):
        queue(CONCURRENCY=(1, 20))
        if kind == "held":
            set_columns(make_jobs(1)[0], gate=HELD_GATE)
        elif kind == "behind its key":
            set_columns(make_jobs(1)[0], gate=KEY_GATE)
        elif kind == "behind a gate":
            add(2, limited(concurrency_limit=1))
            assert len(taken()) == 1
            assert taken() == []
        else:
            work = limited()
            pause("q", task=work, reason="r")
            add(1, work)
            assert taken() == []
        FlowRule.objects.update_or_create(queue="q", task="", defaults={"level": 20})
        for _ in range(20):
            self.move()
        assert FlowRule.objects.get(queue="q", task="").level <= 2

    def test_is_halved_in_trouble(self, queue):
        queue(CONCURRENCY=(1, 8))
        FlowRule.objects.create(queue="q", level=8)
        self.move(trouble=True)
        assert FlowRule.objects.get().level == 4

    def test_does_not_move_where_an_operator_has_set_a_limit(self, queue):
        queue(CONCURRENCY=(2, 4))
        ids = make_jobs(8)
        set_limit("q", concurrency=6)
        assert taken() == ids[:6]
        assert self.move() == 0
        assert taken() == []

    @pytest.mark.parametrize("change", [lambda: set_limit("q", concurrency=2), lambda: clear_limit("q")])
    def test_begins_anew_when_the_limit_of_an_operator_has_ended(self, queue, change):
        queue(CONCURRENCY=(1, 8))
        FlowRule.objects.create(queue="q", level=8, sets_concurrency=True, concurrency=2)
        change()
        assert FlowRule.objects.get().level is None
        clear_limit("q")
        make_jobs(8)
        assert len(taken()) == 1, "the least"

    def test_that_was_stored_counts_within_the_bounds_of_now(self, queue):
        queue(CONCURRENCY=(2, 4))
        FlowRule.objects.create(queue="q", level=100)
        ids = make_jobs(8)
        assert taken() == ids[:4]

    def test_moves_one_step_at_a_time_whichever_worker_takes_it(self, queue):
        queue(CONCURRENCY=(2, 10))
        make_jobs(10)
        taken()
        self.move()
        moved = [queue_levels.run_once(load(), using="default")["levels_moved"] for _ in range(4)]
        assert moved == [0, 0, 0, 0]

    @pytest.mark.parametrize(
        ("level", "ready", "busy", "trouble", "expected"),
        [
            (2, 1, 2, False, 3),
            (8, 1, 8, False, 10),
            (8, 1, 7, False, 8),
            (8, 0, 3, False, 6),
            (8, 0, 4, False, 8),
            (8, 5, 8, True, 4),
            (1, 0, 0, False, 1),
            (1, 1, 1, True, 1),
            (20, 1, 20, False, 20),
        ],
    )
    def test_steps_are_a_quarter_and_within_bounds(self, level, ready, busy, trouble, expected):
        assert next_level(level, 1, 20, ready=ready, busy=busy, trouble=trouble) == expected


def test_no_worker_reads_anything_where_no_queue_has_bounds(django_assert_num_queries, settings):
    settings.JOBQUEUE = {"QUEUES": {"q": {"CONCURRENCY": 4}}}
    configured = load()
    with django_assert_num_queries(0):
        assert queue_levels.run_once(configured, using="default") == Counter()
