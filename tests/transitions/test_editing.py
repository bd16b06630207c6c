"""edit(): what may be changed of a job that waits, and what follows the change."""

from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue import enqueue, task, wakeup
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.exceptions import InvalidType, InvalidValue, PayloadError, PayloadTooLarge, UnknownQueue, WrongArguments
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import GateWait, Job, JobTag, LaneEntry
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE, SCHEDULED, WAITS
from jobqueue.producer import dedupe
from jobqueue.transitions import ack, claim, edit, fail, retry
from jobqueue.transitions.editing import change
from tests.factories import claim_one, job, make_in_state, make_job, row, set_columns

pytestmark = pytest.mark.django_db

STATES = ["READY", "PROCESSING", "DONE", "FAILED", "CANCELED"]


@task(queue_name="q")
def charge(order, *, note="", amount=1):
    return order


def user_of(user, n):
    return user


@task(queue_name="q", unique="waiting", ordering_key=user_of, concurrency_key=user_of, concurrency_limit=5)
def keyed(user, n):
    return user


@task(queue_name="q", concurrency_limit=1, concurrency_key=lambda user: user)
def limited(user):
    return user


@task(queue_name="q", retry_until_seconds=600)
def patient(n):
    return n


def add(task_, *args, **kwargs):
    return int(task_.enqueue(*args, **kwargs).id)


def hours(count):
    return read_now("default") + timedelta(hours=count)


def key_of(job_id):
    return bytes(job(job_id).ordering_key)


class TestStates:
    @pytest.mark.parametrize("name", STATES)
    def test_only_a_ready_job_is_changed(self, name):
        job_id = make_in_state(name)
        before = row(job_id)
        assert edit(job_id, priority=7) is (name == "READY")
        if name == "READY":
            assert job(job_id).priority == 7
        else:
            assert row(job_id) == before

    def test_a_job_that_does_not_exist_is_not_changed(self):
        assert edit(987_654_321, priority=1) is False

    def test_an_id_may_be_text(self):
        assert edit(str(make_job()), priority=1) is True

    def test_what_is_not_given_stays(self):
        job_id = make_job(max_attempts=3, wait_reason="why")
        before = row(job_id)
        assert edit(job_id, priority=7)
        changed = {name for name, value in row(job_id).items() if value != before[name]}
        assert changed == {"priority", "updated_at"}

    def test_the_changes_are_told_with_their_values_before(self):
        job_id = add(charge, 1)
        assert change(job_id, {"priority": 7, "queue": "q", "args": [2]}) == {"priority": (0, 7), "args": ([1], [2])}


class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ({}, InvalidValue),
            ({"priority": "high"}, InvalidType),
            ({"priority": 2**31}, InvalidValue),
            ({"run_at": "tomorrow"}, InvalidType),
            ({"queue": "a,b"}, InvalidValue),
            ({"queue": None}, InvalidType),
            ({"max_attempts": 0}, InvalidValue),
            ({"expires": -1}, InvalidValue),
            ({"tags": "billing"}, InvalidType),
            ({"tags": [""]}, InvalidValue),
            ({"args": "12"}, InvalidType),
            ({"kwargs": [1]}, InvalidType),
            ({"args": [1, 2]}, WrongArguments),
            ({"kwargs": {"colour": 1}}, WrongArguments),
            ({"args": [{1}]}, PayloadError),
            ({"args": [float("nan")]}, PayloadError),
        ],
        ids=str,
    )
    def test_a_wrong_value_is_refused_and_nothing_is_written(self, given, error):
        job_id = add(charge, 1)
        before = row(job_id)
        with pytest.raises(error):
            edit(job_id, **given)
        with pytest.raises(error):
            edit(job_id, **({"priority": 3} | given) if given else {})
        assert row(job_id) == before

    def test_a_queue_that_tasks_does_not_name_is_refused(self, settings):
        job_id = make_job()
        settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": ["q", "slow"]}}
        with pytest.raises(UnknownQueue):
            edit(job_id, queue="other")
        assert edit(job_id, queue="slow")

    def test_arguments_that_are_too_large_are_refused(self, settings):
        job_id = add(charge, 1)
        settings.JOBQUEUE = {"MAX_PAYLOAD_BYTES": 1000}
        with pytest.raises(PayloadTooLarge):
            edit(job_id, args=["x" * 1000])

    def test_a_raw_row_has_no_arguments(self):
        with pytest.raises(InvalidValue, match="raw row"):
            edit(make_job(), args=[1])

    def test_arguments_of_a_task_that_is_not_known_here_are_refused(self):
        job_id = make_job(task="gone.tasks.send")
        with pytest.raises(InvalidValue, match="not known here"):
            edit(job_id, args=[1])
        assert edit(job_id, priority=1)

    def test_an_error_leaves_the_callers_transaction_usable(self):
        job_id, other = add(charge, 1), make_job()
        with transaction.atomic():
            with pytest.raises(WrongArguments):
                edit(job_id, args=[])
            assert edit(other, priority=2)
        assert job(other).priority == 2


class TestTimes:
    def test_a_job_that_is_delayed_says_so_and_is_not_claimed(self):
        job_id = make_job()
        assert edit(job_id, run_at=hours(1))
        assert job(job_id).wait_reason == SCHEDULED
        assert claim("q", worker="w") == []

    def test_none_is_now(self):
        job_id = enqueue("q", 1, run_at=hours(5))
        assert edit(job_id, run_at=None)
        assert job(job_id).wait_reason is None
        assert claim_one().job_id == job_id

    def test_expires_counts_from_the_moment_it_is_due(self):
        job_id, due = make_job(), hours(2)
        assert edit(job_id, run_at=due, expires=60)
        assert job(job_id).expires_at == due + timedelta(seconds=60)
        assert edit(job_id, expires=due)
        assert job(job_id).expires_at == due
        assert edit(job_id, expires=None)
        assert job(job_id).expires_at is None

    def test_the_time_for_retries_begins_when_the_job_is_due(self):
        job_id, due = add(patient, 1), hours(2)
        assert edit(job_id, run_at=due)
        assert job(job_id).options["first_due"] == [due.isoformat(), 0]

    def test_a_job_that_has_run_keeps_the_beginning_of_that_time(self):
        job_id = add(patient, 1)
        fail(claim_one(), error="x", delay_seconds=100)
        before = job(job_id).options
        assert edit(job_id, run_at=hours(2))
        assert job(job_id).options == before


class TestAttempts:
    def test_none_is_what_the_task_has(self):
        job_id = make_job(max_attempts=3)
        assert edit(job_id, max_attempts=None)
        assert job(job_id).max_attempts == 25

    def test_those_that_were_used_are_not_taken_back(self):
        job_id = make_job()
        fail(claim_one(), error="x", delay_seconds=0)
        with pytest.raises(InvalidValue, match="at least 2"):
            edit(job_id, max_attempts=1)
        assert edit(job_id, max_attempts=2)
        assert fail(claim_one(), error="x", delay_seconds=0) == Job.Status.FAILED

    def test_a_later_retry_gives_as_many(self):
        job_id = make_job(max_attempts=2)
        for _ in range(2):
            fail(claim_one(), error="x", delay_seconds=0)
        assert retry(job_id)
        assert edit(job_id, max_attempts=7)  # 5 in this life
        for _ in range(5):
            fail(claim_one(), error="x", delay_seconds=0)
        assert retry(job_id)
        assert job(job_id).max_attempts == 12


class TestTags:
    def test_replace_those_that_the_job_has(self):
        job_id = int(charge.using(tags=["a", "b"]).enqueue(1).id)
        assert edit(job_id, tags=["b", "c", "c"])
        assert list(JobTag.objects.filter(job_id=job_id).order_by("pk").values_list("tag", flat=True)) == ["b", "c"]
        assert edit(job_id, tags=())
        assert not Job.objects.tagged("b").exists()


class TestArguments:
    def test_what_is_not_given_of_them_stays(self):
        job_id = add(charge, 1, note="x")
        assert edit(job_id, args=[2])
        assert job(job_id).payload == {"args": [2], "kwargs": {"note": "x"}}
        assert edit(job_id, kwargs={"amount": 3})
        assert claim_one().payload == {"args": [2], "kwargs": {"amount": 3}}

    def test_those_that_do_not_fit_can_be_corrected(self):
        job_id = make_job(payload={"args": [1, 2, 3]}, task=charge.module_path)
        with pytest.raises(WrongArguments):
            edit(job_id, kwargs={"note": "x"})
        assert edit(job_id, args=[1])
        other = make_job(payload="nonsense", task=charge.module_path)
        with pytest.raises(InvalidValue, match="both args and kwargs"):
            edit(other, args=[1])
        assert edit(other, args=[1], kwargs={})

    def test_keys_follow_them(self):
        job_id = add(keyed, "ann", 1)
        before = row(job_id)["dedupe_key"]
        assert edit(job_id, args=["ben", 1])
        assert (key_of(job_id), bytes(job(job_id).concurrency_key)) == (b"ben", b"ben")
        assert row(job_id)["dedupe_key"] != before
        assert add(keyed, "ben", 1) == job_id
        assert add(keyed, "ann", 1) != job_id

    def test_a_dedupe_key_that_another_job_has_is_refused(self):
        first, second = add(keyed, "ann", 1), add(keyed, "ann", 2)
        before = row(second)
        with transaction.atomic(), pytest.raises(InvalidValue, match="another job of queue q"):
            edit(second, args=["ann", 1])
        assert row(second) == before
        assert edit(first, args=["ann", 3])
        assert edit(second, args=["ann", 1])

    def test_a_key_that_was_given_by_hand_and_does_not_depend_on_them_stays(self):
        job_id = int(charge.using(dedupe_key="mine", ordering_key="own").enqueue(1).id)
        assert edit(job_id, args=[2])
        assert bytes(job(job_id).dedupe_key) == b"mine"
        assert key_of(job_id) == b"own"

    def test_a_key_that_may_not_fit_them_is_refused(self):
        add(keyed, "zoe", 1)  # registers the task as its module does
        job_id = int(keyed.using(ordering_key="mine").enqueue("ann", 1).id)
        assert edit(job_id, args=["ann", 2])
        with pytest.raises(InvalidValue, match="ordering_key mine"):
            edit(job_id, args=["ben", 1])

    def test_a_key_that_was_freed_does_not_come_back(self):
        job_id = add(keyed, "ann", 1)
        fail(claim_one(), error="x", delay_seconds=0)
        assert edit(job_id, args=["ann", 2])
        assert (job(job_id).dedupe_key, job(job_id).released_key) == (None, None)


class TestQueues:
    def test_the_job_is_claimed_from_the_new_one(self):
        job_id = make_job()
        assert edit(job_id, queue="slow")
        assert claim("q", worker="w") == []
        assert claim_one("slow").job_id == job_id

    def test_a_dedupe_key_goes_with_it_unless_a_job_there_has_it(self):
        first, second = enqueue("q", 1, dedupe_key="k"), enqueue("slow", 2, dedupe_key="k")
        with pytest.raises(InvalidValue, match="cancel that one"):
            edit(first, queue="slow")
        assert enqueue("q", 3, dedupe_key="k") == first
        ack(claim_one("slow"))
        set_columns(second, finished_at=UtcNowPlus(-2 * 86_400))
        assert edit(first, queue="slow")
        assert enqueue("slow", 3, dedupe_key="k") == first
        assert enqueue("q", 3, dedupe_key="k") not in (first, second)


class TestOrder:
    def test_a_job_goes_behind_the_others_of_its_new_key(self):
        first, second, third = add(keyed, "ann", 1), add(keyed, "ben", 2), add(keyed, "ann", 3)
        assert edit(first, args=["ben", 1])
        assert (job(first).gate, job(first).wait_reason) == (KEY_GATE, WAITS)
        assert {lease.job_id for lease in claim("q", limit=9, worker="w")} == {second, third}

    def test_a_key_goes_with_the_job_to_another_queue(self):
        first, second = (enqueue("q", n, ordering_key="k") for n in (1, 2))
        there = enqueue("slow", 3, ordering_key="k")
        assert edit(first, queue="slow")
        assert claim_one("q").job_id == second
        assert [lease.job_id for lease in claim("slow", limit=9, worker="w")] == [there]
        assert LaneEntry.objects.filter(job_id=first).count() == 1

    def test_a_job_that_is_held_stays_in_its_order(self):
        job_id = add(keyed, "ann", 1)
        set_columns(job_id, gate=HELD_GATE)
        with pytest.raises(InvalidValue, match="held after a crash"):
            edit(job_id, args=["ben", 1])
        with pytest.raises(InvalidValue, match="held after a crash"):
            edit(job_id, queue="slow")
        assert edit(job_id, args=["ann", 2], priority=4)


class TestLimits:
    def blocked(self):
        running, waiting = add(limited, "ann"), add(limited, "ann")
        assert claim_one().job_id == running
        assert claim("q", worker="w") == []
        assert job(waiting).gate == FLOW_GATE
        return waiting

    def test_of_another_key_let_the_job_go(self):
        waiting = self.blocked()
        assert edit(waiting, args=["ben"])
        assert not GateWait.objects.filter(job_id=waiting).exists()
        assert claim_one().job_id == waiting

    def test_of_another_queue_let_the_job_go(self):
        waiting = self.blocked()
        assert edit(waiting, queue="slow")
        assert claim_one("slow").job_id == waiting

    def test_meet_a_job_with_its_new_priority(self):
        waiting = self.blocked()
        assert edit(waiting, priority=8)
        assert claim("q", worker="w") == []
        assert GateWait.objects.get(job_id=waiting).urgency == -8

    def test_let_a_job_be_delayed_that_waits_for_them(self):
        waiting = self.blocked()
        assert edit(waiting, run_at=hours(1))
        assert (job(waiting).gate, job(waiting).wait_reason) == (0, SCHEDULED)

    def test_other_changes_leave_it_where_it_waits(self):
        waiting = self.blocked()
        assert edit(waiting, max_attempts=3)
        assert job(waiting).gate == FLOW_GATE


class TestWhoIsTold:
    @pytest.fixture
    def notified(self, monkeypatch):
        heard = []
        monkeypatch.setattr(wakeup, "notify", lambda queue, using: heard.append(queue))
        return heard

    def test_workers_of_its_queue_are_woken_when_it_is_due(self, notified):
        job_id = enqueue("q", 1, run_at=hours(1))
        assert edit(job_id, run_at=None)
        assert notified == ["q"]

    def test_workers_of_its_new_queue_are_woken(self, notified):
        job_id = make_job()
        notified.clear()
        assert edit(job_id, queue="slow")
        assert notified == ["slow"]

    def test_nobody_is_told_of_what_was_not_changed(self, notified):
        job_id = make_in_state("DONE")
        notified.clear()
        assert not edit(job_id, priority=1)
        assert notified == []

    def test_the_next_job_of_its_old_ordering_key_begins(self):
        first, second = add(keyed, "ann", 1), add(keyed, "ann", 2)
        assert edit(first, args=["ben", 1])
        assert {lease.job_id for lease in claim("q", limit=9, worker="w")} == {first, second}


@task(queue_name="q", unique="waiting", dedupe_key="digest", on_conflict="replace", ordering_key=user_of)
def digest(user, n):
    return user


class TestAnEnqueueThatReplaces:
    """It has read the job, and before it writes it the job is edited."""

    @pytest.fixture
    def meanwhile(self, monkeypatch):
        def do(work):
            real = dedupe.bounded_wait

            def first(*given):
                monkeypatch.setattr(dedupe, "bounded_wait", real)
                assert work()
                return real(*given)

            monkeypatch.setattr(dedupe, "bounded_wait", first)

        return do

    def test_adds_a_job_if_that_one_has_gone_to_another_queue(self, meanwhile):
        first = add(digest, "ann", 1)
        meanwhile(lambda: edit(first, queue="slow"))
        second = add(digest, "ann", 2)
        assert (job(first).queue, job(first).payload["args"]) == ("slow", ["ann", 1])
        assert (job(second).queue, job(second).payload["args"]) == ("q", ["ann", 2])

    def test_puts_it_into_the_order_of_its_own_key(self, meanwhile):
        first = add(digest, "ann", 1)
        meanwhile(lambda: edit(first, args=["ben", 1]))
        assert add(digest, "ann", 2) == first
        assert (key_of(first), job(first).payload["args"]) == (b"ann", ["ann", 2])
        assert claim_one().job_id == first
