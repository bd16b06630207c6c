"""The sweep repairs what crashes have left: no slot is taken for ever, no job is hidden for ever, no row stays."""

import itertools
from collections import Counter

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.db.clock import UtcNowPlus
from jobqueue.flow import pause, resume, set_limit
from jobqueue.gates.limits import rate_subject, slot_subject
from jobqueue.gates.rules import forget_rules
from jobqueue.maintenance import gate_sweep
from jobqueue.maintenance.gate_sweep import INTERVAL_SECONDS, GateSweep
from jobqueue.models import FlowRule, Gate, GateSlot, GateWait, Job
from jobqueue.testing import travel
from jobqueue.transitions import ack, cancel
from tests.clocks import Clock
from tests.factories import make_job
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, rows_of_waiting, sweep, take, taken, waiting
from tests.marks import finding

pytestmark = pytest.mark.django_db
LEASE = {"locked_by": None, "lock_token": None, "locked_at": None, "lock_until": None}


@pytest.fixture
def silent(monkeypatch):
    """Whoever frees a slot dies before it can tell anybody."""
    monkeypatch.setattr("jobqueue.transitions.verb.open_next", lambda *_, **__: None)


def end_behind_the_back(job_id):
    """As a program that knows only SQL, or a crash between two commits."""
    Job.objects.filter(pk=job_id).update(status=Job.Status.DONE, **LEASE)


def test_a_job_starts_although_the_process_died_that_freed_its_slot(limited, silent):
    first, second = add(2, limited(concurrency_limit=1))
    lease = take()[first]
    assert taken() == []
    ack(lease)
    assert taken() == []
    assert sweep()["gates_jobs_opened"] == 1
    assert taken() == [second]


def test_its_period_is_short_enough_for_the_promise_of_a_minute():
    assert INTERVAL_SECONDS <= 60


def test_it_works_once_in_its_period(limited, silent, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(gate_sweep.time, "monotonic", clock)
    rounds = GateSweep(interval_seconds=5)
    assert rounds.run_once(None, using="default") == Counter()
    first, _ = add(2, limited(concurrency_limit=1))
    lease = take()[first]
    taken()
    ack(lease)
    clock.go(4.9)
    assert rounds.run_once(None, using="default")["gates_jobs_opened"] == 0
    clock.go(0.2)
    assert rounds.run_once(None, using="default")["gates_jobs_opened"] == 1


def test_it_opens_as_many_as_are_free_and_no_more(limited, silent):
    ids = add(10, limited(concurrency_limit=3))
    leases = take()
    assert taken() == []
    ack(leases[ids[0]])
    ack(leases[ids[1]])
    assert sweep()["gates_jobs_opened"] == 2
    assert waiting() == ids[5:]


@pytest.mark.parametrize("gone", [lambda ids: Job.objects.filter(pk__in=ids).delete(), lambda ids: [*map(cancel, ids)]])
def test_rows_of_jobs_that_wait_no_more_are_deleted(limited, gone):
    _, *rest = add(5, limited(concurrency_limit=1))
    taken()
    taken()
    gone(rest[:3])
    assert sweep()["gates_rows_deleted"] >= 3
    assert rows_of_waiting() == rest[3:]


def test_slots_of_leases_that_have_ended_are_deleted_and_others_are_kept(limited):
    work = limited(concurrency_limit=1, concurrency_key=jobs.by_argument)
    ids = [int(work.enqueue(str(n)).id) for n in range(5)]
    leases = take()
    for job_id in ids[:4]:
        ack(leases[job_id])
    sweep()
    assert list(GateSlot.objects.values_list("job_id", flat=True)) == ids[4:]
    add(1, work, "4")
    assert taken() == []


def test_a_job_whose_row_at_the_gate_was_deleted_is_opened(limited):
    first, second = add(2, limited(concurrency_limit=1))
    taken()
    taken()
    GateWait.objects.all().delete()
    end_behind_the_back(first)
    assert sweep()["gates_jobs_opened"] >= 1
    assert taken() == [second]


def test_a_job_whose_gate_was_deleted_is_opened(limited):
    first, second = add(2, limited(concurrency_limit=1))
    taken()
    taken()
    Gate.objects.all().delete()
    end_behind_the_back(first)
    sweep()
    open_in_time()
    sweep()
    open_in_time()
    assert taken() == [second]


def test_a_job_behind_the_gate_of_a_pause_that_somebody_has_deleted_is_opened(plain):
    ids = add(2, plain)
    pause("q", task=plain, reason="r")
    taken()
    FlowRule.objects.all().delete()
    Gate.objects.update(opens_at=None)
    forget_rules()
    sweep()
    open_in_time()
    assert taken() == ids


def test_a_job_behind_a_gate_whose_time_was_lost_is_looked_at_again(limited):
    ids = add(2, limited(rate_limit="1/m"))
    taken()
    taken()
    Gate.objects.update(opens_at=None)
    sweep()
    with travel(61):
        open_in_time()
        assert taken() == ids[1:]


def test_a_pause_that_holds_is_not_ended_by_the_sweep(plain):
    ids = add(3, plain)
    pause("q", task=plain, reason="r")
    taken()
    for _ in range(3):
        sweep()
        look_again()
    assert waiting() == ids
    resume("q", task=plain)
    open_in_time()
    assert taken() == ids


def test_a_limit_of_0_is_not_ended_by_the_sweep(plain):
    ids = add(3, plain)
    set_limit("q", task=plain, concurrency=0)
    taken()
    for _ in range(3):
        sweep()
        open_in_time()
        assert taken() == []
    assert waiting() == ids


def test_gates_that_nobody_has_used_for_a_day_are_deleted(limited):
    work = limited(rate_limit="10/s", concurrency_key=jobs.by_argument)
    for n in range(4):
        work.enqueue(str(n))
    taken()
    assert Gate.objects.count() == 4
    sweep()
    assert Gate.objects.count() == 4
    with travel(2 * gate_sweep.IDLE_SECONDS):
        sweep()
        assert Gate.objects.count() == 0
        # One without a row has a full bucket.
        (job_id,) = add(1, work, "1")
        assert taken() == [job_id]


def test_gates_at_which_jobs_wait_are_kept_however_old_they_are(limited):
    first, _ = add(2, limited(concurrency_limit=1))
    taken()
    taken()
    Gate.objects.update(updated_at=UtcNowPlus(-1e7), opens_at=None)
    sweep()
    assert Gate.objects.count() == 1
    assert first


def test_two_sweeps_at_the_same_time_open_nothing_twice(limited, silent):
    first, *rest = add(4, limited(concurrency_limit=1))
    lease = take()[first]
    taken()
    ack(lease)
    assert sweep()["gates_jobs_opened"] + sweep()["gates_jobs_opened"] >= 1
    assert taken() == rest[:1]
    assert waiting() == rest[1:]


def test_a_large_table_is_swept_slice_by_slice(limited, monkeypatch):
    monkeypatch.setattr(gate_sweep, "SLICE", 3)
    monkeypatch.setattr(gate_sweep, "BATCH", 2)
    _, *rest = add(12, limited(concurrency_limit=1))
    taken()
    taken()
    Job.objects.filter(pk__in=rest[::2]).update(status=Job.Status.CANCELED, gate=0)
    rounds = GateSweep(interval_seconds=0.0)
    for _ in range(6):
        rounds.run_once(None, using="default")
    assert rows_of_waiting() == rest[1::2]


def test_where_nobody_waits_a_sweep_costs_a_few_reads():
    make_job()
    with CaptureQueriesContext(connection) as seen:
        assert sweep() == Counter()
    assert len(seen) < 12
    assert not [query for query in seen if query["sql"].startswith(("UPDATE", "DELETE", "INSERT"))]


@pytest.mark.parametrize(
    ("limit", "written"),
    [
        ({"concurrency": 3}, {"most": 1}),
        ({"rate": "3/s"}, {"per_second": 1 / 3600, "opens_at": UtcNowPlus(3000)}),
    ],
)
def test_a_limit_that_a_frozen_claim_has_written_late_is_replaced(limited, limit, written):
    work = limited(**{f"{name}_limit": 1 if name == "concurrency" else "1/h" for name in limit})
    first, *others = add(5, work)
    with travel(0) as clock:
        assert taken() + taken() == [first]
        set_limit("q", task=work, **limit)
        Gate.objects.exclude(task=None).update(**written)
        sweep()
        for _ in range(20):
            clock.forward(0.06)
            open_in_time()
        assert taken()[:2] == others[:2]


class TestMoreThanOnePassLooksAt:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr(gate_sweep, "SLICE", 3)
        monkeypatch.setattr(gate_sweep, "BATCH", 2)

    @finding("F7")
    def test_a_crash_behind_ten_other_keys_that_wait_is_repaired(self, limited, silent):
        paced = limited(jobs.other, rate_limit="1/h", concurrency_key=jobs.by_argument)
        first, second = add(2, limited(concurrency_limit=1))
        last = slot_subject("q", jobs.WORK).number
        names = (str(number) for number in itertools.count())
        before = (name for name in names if rate_subject("q", jobs.OTHER, name.encode()).number < last)
        for name in itertools.islice(before, 10):
            add(2, paced, name)
        leases = take()
        assert taken() == []
        ack(leases[first])
        rounds = GateSweep(interval_seconds=0.0)
        for _ in range(12):
            rounds.run_once(None, using="default")
        assert second not in waiting()
        assert len(waiting()) == 10

    @finding("F7")
    def test_jobs_of_a_paused_task_do_not_hide_those_behind_them_that_lost_their_rows(self, limited):
        work = limited()
        ahead = add(8, work)
        pause("q", task=work, reason="r")
        runs, hidden = add(2, limited(jobs.other, concurrency_limit=1))
        assert taken() == [runs]
        assert waiting() == [*ahead, hidden]
        GateWait.objects.filter(pk=hidden).delete()
        rounds = GateSweep(interval_seconds=0.0)
        for _ in range(6):
            rounds.run_once(None, using="default")
        assert waiting() == ahead

    def test_the_command_sweeps_all_of_it(self, limited, silent):
        work = limited(concurrency_limit=1, concurrency_key=jobs.by_argument)
        firsts = [add(1, work, str(n))[0] for n in range(9)]
        others = [add(1, work, str(n))[0] for n in range(9)]
        leases = take()
        taken()
        assert waiting() == others
        for one in firsts:
            ack(leases[one])
        assert GateSweep().sweep_all(None, using="default") == {"gates_rows_deleted": 9, "gates_jobs_opened": 9}


@finding("K-C7")
def test_ended_slots_are_deleted_together(limited):
    work = limited(concurrency_limit=1, concurrency_key=jobs.by_argument)
    for n in range(50):
        add(1, work, str(n))
    for lease in take().values():
        ack(lease)
    with CaptureQueriesContext(connection) as seen:
        assert sweep()["gates_rows_deleted"] >= 50
    assert len([query for query in seen if query["sql"].startswith("DELETE")]) <= 2
    assert not GateSlot.objects.exists()
