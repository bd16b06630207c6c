"""pause(), drain(), resume() and paused(): who, why, until when, and that nothing starts meanwhile."""

import time
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import QueueFull
from jobqueue.flow import drain, pause, paused, resume
from jobqueue.gates.rules import forget_rules
from jobqueue.models import FlowRule, Job
from jobqueue.signals import queue_paused, queue_resumed
from jobqueue.testing import travel
from jobqueue.transitions import ack, cancel, fail, heartbeat
from jobqueue.transitions.claiming import claimer
from tests.factories import job, make_due, make_job, make_jobs, now, seconds_from_now, state
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, take, taken, waiting
from tests.marks import committed, finding

pytestmark = pytest.mark.django_db


@pytest.fixture
def heard():
    """The signals of the test: (which, facts)."""
    found = []

    def on_pause(**facts):
        found.append(("paused", facts))

    def on_resume(**facts):
        found.append(("resumed", facts))

    queue_paused.connect(on_pause)
    queue_resumed.connect(on_resume)
    yield found
    queue_paused.disconnect(on_pause)
    queue_resumed.disconnect(on_resume)


class TestAQueue:
    def test_that_is_paused_starts_nothing_until_it_is_resumed(self):
        ids = make_jobs(3)
        pause("q", reason="the mail server moves")
        assert taken() == []
        assert resume("q") is True
        assert taken() == ids

    def test_that_is_paused_takes_new_jobs(self):
        pause("q", reason="maintenance")
        job_id = make_job()
        assert state(job_id) == "READY"
        assert taken() == []

    def test_that_is_paused_lets_running_jobs_end(self):
        first, second = make_jobs(2)
        leases = take()
        pause("q", reason="maintenance")
        heartbeat(leases[first], lease_seconds=60)
        ack(leases[first])
        fail(leases[second], error="boom", delay_seconds=0)
        assert state(first) == "DONE"
        make_due(second)
        assert taken() == []

    def test_of_a_million_jobs_is_paused_by_one_row(self):
        make_jobs(20)
        before = list(Job.objects.order_by("id").values())
        pause("q", reason="maintenance")
        assert taken() == []
        assert list(Job.objects.order_by("id").values()) == before
        assert FlowRule.objects.count() == 1
        resume("q")
        assert list(Job.objects.order_by("id").values()) == before

    def test_that_is_paused_does_not_stop_others(self):
        make_job()
        other = make_job("other")
        pause("q", reason="maintenance")
        assert taken(queue="other") == [other]

    def test_that_is_paused_is_not_read_by_claims(self):
        make_jobs(3)
        pause("q", reason="maintenance")
        taken()
        with CaptureQueriesContext(connection) as seen:
            assert taken() == []
        assert not [query for query in seen if "job_queue" in query["sql"]]


class TestUntil:
    def test_ends_the_pause_by_itself(self):
        job_id = make_job()
        pause("q", reason="until the hour is over", until=now() + timedelta(hours=1))
        assert taken() == []
        with travel(3590):
            forget_rules()
            assert taken() == []
        with travel(3610):
            forget_rules()
            assert paused() == []
            assert taken() == [job_id]

    def test_is_told_as_an_aware_instant(self):
        until = now() + timedelta(hours=1)
        pause("q", reason="r", until=until)
        (found,) = paused()
        assert found.until == until
        assert -60 < seconds_from_now(found.since) <= 0
        assert found.since.utcoffset() is not None

    def test_ends_the_pause_of_a_task_too(self, plain):
        ids = add(3, plain)
        pause("q", task=plain, reason="r", until=now() + timedelta(hours=1))
        assert taken() == []
        assert look_again() == 0
        with travel(3610):
            forget_rules()
            assert open_in_time() == 3
            assert taken() == ids

    def test_of_a_later_pause_counts(self):
        make_job()
        pause("q", reason="short", until=now() + timedelta(seconds=10))
        pause("q", reason="for ever")
        with travel(3600):
            forget_rules()
            assert taken() == []
            assert [one.reason for one in paused()] == ["for ever"]

    def test_ends_with_the_pause_that_had_it(self):
        pause("q", reason="r", until=now() + timedelta(hours=1))
        drain("q", reason="r")
        assert [one.until for one in paused()] == [None]
        pause("q", reason="r", until=now() + timedelta(hours=1))
        resume("q")
        found = FlowRule.objects.get()
        assert (found.until, found.since, found.reason, found.by) == (None, None, "", "")


class TestATask:
    def test_that_is_paused_waits_while_others_run(self, limited):
        held, free = limited(), limited(jobs.other)
        ids = add(2, held)
        others = [*add(2, free), make_job()]
        pause("q", task=held, reason="wrong letters")
        assert taken() == others
        assert waiting() == ids
        assert job(ids[0]).wait_reason == f"paused {jobs.WORK}"

    def test_may_be_given_by_its_path(self, limited):
        (first,) = add(1, limited())
        pause("q", task=jobs.WORK, reason="r")
        assert taken() == []
        assert resume("q", task=jobs.WORK) is True
        open_in_time()
        assert taken() == [first]

    def test_starts_again_in_its_order_when_it_is_resumed(self, plain):
        ids = add(5, plain)
        (high,) = add(1, plain.using(priority=3))
        pause("q", task=plain, reason="r")
        assert taken() == []
        resume("q", task=plain)
        open_in_time()
        assert taken() == [high, *ids]
        assert set(Job.objects.values_list("wait_reason", flat=True)) == {None}

    def test_is_paused_in_one_queue_only(self, plain):
        add(1, plain)
        there = add(1, plain.using(queue_name="elsewhere"))
        pause("q", task=plain, reason="r")
        assert taken() == []
        assert taken(queue="elsewhere") == there

    def test_and_its_queue_may_both_be_paused(self, plain):
        ids = add(1, plain)
        pause("q", task=plain, reason="the task")
        pause("q", reason="the queue")
        assert [(one.task, one.reason) for one in paused()] == [(None, "the queue"), (jobs.WORK, "the task")]
        resume("q", task=plain)
        open_in_time()
        assert taken() == []
        resume("q")
        assert taken() == ids

    def test_that_is_paused_uses_no_attempt_and_no_claim(self, plain):
        add(5, plain)
        pause("q", task=plain, reason="r")
        for _ in range(3):
            assert taken() == []
            look_again()
        assert set(Job.objects.values_list("attempts", "fence", "gate")) == {(0, 0, 3)}

    def test_that_waited_can_be_canceled(self, plain):
        first, second = add(2, plain)
        pause("q", task=plain, reason="r")
        taken()
        assert cancel(first)
        resume("q", task=plain)
        open_in_time()
        assert taken() == [second]

    def test_whose_code_is_gone_can_still_be_resumed(self, plain, monkeypatch):
        pause("q", task=plain, reason="r")
        monkeypatch.setattr("jobqueue.tasks.registry.find_task", lambda path: None)
        assert resume("q", task=jobs.WORK) is True


class TestDrain:
    def test_refuses_new_jobs_and_works_off_those_that_are_there(self):
        ids = make_jobs(2)
        drain("q", reason="the queue moves")
        with pytest.raises(QueueFull, match="draining") as caught:
            enqueue("q", 1)
        assert (caught.value.queue, caught.value.ready) == ("q", None)
        assert taken() == ids
        assert resume("q") is True
        assert taken() == []
        job_id = make_job()
        assert taken() == [job_id]

    def test_is_told_by_paused(self):
        drain("q", reason="the queue moves", by="ann")
        (found,) = paused()
        assert (found.queue, found.task, found.mode, found.reason, found.by, found.until) == (
            "q",
            None,
            "draining",
            "the queue moves",
            "ann",
            None,
        )

    def test_and_pause_replace_each_other(self):
        (job_id,) = make_jobs(1)
        drain("q", reason="one")
        pause("q", reason="two")
        assert [(one.mode, one.reason) for one in paused()] == [("paused", "two")]
        make_job()
        assert taken() == []
        drain("q", reason="three")
        assert taken()[0] == job_id


def test_paused_tells_who_why_and_since_when():
    pause("b", reason=" the mail server moves ", by="ann")
    pause("a", reason="r")
    first, second = paused()
    assert (first.queue, first.by) == ("a", "")
    assert (second.queue, second.task, second.mode, second.reason, second.by) == (
        "b",
        None,
        "paused",
        "the mail server moves",
        "ann",
    )


def test_resume_of_what_is_not_paused_is_false():
    assert resume("q") is False
    pause("q", reason="r")
    assert resume("q") is True
    assert resume("q") is False
    assert paused() == []


def test_a_pause_is_undone_with_the_transaction_of_its_caller():
    job_id = make_job()
    with transaction.atomic():
        pause("q", reason="r")
        transaction.set_rollback(True)
    forget_rules()
    assert paused() == []
    assert taken() == [job_id]


def test_the_pause_is_still_there_for_a_process_that_begins():
    make_job()
    pause("q", reason="r")
    forget_rules()
    assert taken() == []


def test_a_pause_by_another_process_counts_within_half_a_second(monkeypatch):
    first, second = make_jobs(2)
    assert taken(1) == [first]
    FlowRule.objects.create(queue="q", mode="paused", reason="elsewhere", since=UtcNowPlus(0))
    half_a_second_later = time.monotonic() + 0.51
    monkeypatch.setattr("jobqueue.gates.rules.time.monotonic", lambda: half_a_second_later)
    assert taken() == []
    assert state(second) == "READY"


def test_signals_tell_of_pauses_and_of_their_ends(heard, plain):
    until = now() + timedelta(hours=1)
    pause("q", task=plain, reason="r", until=until, by="ann")
    drain("q", reason="d")
    resume("q", by="bob")
    resume("q")
    wanted = ("queue", "task", "mode", "reason", "by", "until")
    assert [(kind, {name: facts[name] for name in wanted if name in facts}) for kind, facts in heard] == [
        ("paused", {"queue": "q", "task": jobs.WORK, "mode": "paused", "reason": "r", "by": "ann", "until": until}),
        ("paused", {"queue": "q", "task": None, "mode": "draining", "reason": "d", "by": "", "until": None}),
        ("resumed", {"queue": "q", "task": None, "by": "bob"}),
    ]


class Undone(Exception):
    pass


@finding("F13")
@committed
def test_signals_of_a_transaction_wait_for_its_commit(heard):
    with transaction.atomic():
        pause("q", reason="r")
        drain("other", reason="r")
        resume("q")
        assert heard == []
    assert [(what, facts["queue"]) for what, facts in heard] == [("paused", "q"), ("paused", "other"), ("resumed", "q")]


@finding("F13")
@committed
def test_signals_of_a_transaction_that_is_rolled_back_are_not_sent(heard):
    with suppress(Undone), transaction.atomic():
        pause("q", reason="r")
        resume("q")
        raise Undone
    assert heard == []


@finding("F13")
def test_a_pause_that_has_ended_by_itself_cannot_be_resumed(heard, plain):
    with travel(0) as clock:
        for task in (None, plain):
            pause("q", task=task, reason="r", until=now() + timedelta(seconds=2))
        clock.forward(3)
        heard.clear()
        assert paused() == []
        assert not resume("q")
        assert not resume("q", task=plain)
    assert heard == []
    assert not FlowRule.objects.exclude(mode=FlowRule.Mode.RUNNING).exists()


@finding("K-C11")
@pytest.mark.parametrize("whole_queue", [True, False], ids=["queue", "task"])
def test_a_claim_that_waited_while_its_jobs_were_paused_gives_them_back(limited, monkeypatch, whole_queue):
    """As for the lock of the writer, for longer than the rules may be old by which it began."""
    work, other = limited(), limited(jobs.other)
    ids, (running,) = add(2, work), add(1, other)
    monkeypatch.setattr(claimer, "RULES_SECONDS", 0.0, raising=False)

    def waits(take):
        def and_takes(request):
            found = take(request)
            if found.leases:
                pause("q", task=None if whole_queue else work, reason="r")
            return found

        return and_takes

    for name in ("select_then_update", "update_returning"):
        monkeypatch.setattr(claimer, name, waits(getattr(claimer, name)))
    assert taken() == ([] if whole_queue else [running])
    assert {(state(one), job(one).attempts) for one in ids} == {("READY", 0)}
    resume("q", task=None if whole_queue else work)
    monkeypatch.undo()
    look_again()
    assert taken() == ([*ids, running] if whole_queue else ids)
