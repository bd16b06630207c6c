"""A redrive brings dead letters back: recorded at once, carried out step by step."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue
from jobqueue.base.durations import parse_rate
from jobqueue.dead_letters import recording, redrive, redrives, stop
from jobqueue.exceptions import DatabaseBusy, InvalidType, InvalidValue, OutcomeUnknown
from jobqueue.models import Job, Redrive
from jobqueue.runs import bulk_steps, redrive_steps, stepping
from jobqueue.runs.job_filter import next_dead_ids
from jobqueue.runs.redrive_steps import step
from jobqueue.transitions import ack, cancel, claim, discard, fail, resume, retry
from tests.factories import claim_one, job, make_job, make_jobs, set_columns, state
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db
LATER_SECONDS = 3600.0


@pytest.fixture(autouse=True)
def put_off_for_long(monkeypatch):
    """A step that is put off is not due again during the test, however busy the machine is."""
    for module in (stepping, redrive_steps, bulk_steps):
        monkeypatch.setattr(module, "LATER_SECONDS", LATER_SECONDS)


def dead(count=1, queue="q", error=None, **columns):
    """Jobs that have failed for good, oldest first."""
    ids = make_jobs(count, queue=queue, max_attempts=1, **columns)
    for lease in claim(queue, count, worker="w"):
        fail(lease, error=error or ValueError("x"))
    assert {state(job_id) for job_id in ids} == {"FAILED"}
    return ids


def carry_out(**options):
    """Take steps until none is due."""
    steps = []
    while (done := step(using="default", **options)) is not None:
        steps.append(done)
        assert len(steps) < 1000
    return steps


def due_now():
    Redrive.objects.filter(due_at__isnull=False).update(due_at=datetime(2001, 1, 1, tzinfo=UTC))


def of(run):
    (found,) = [one for one in redrives() if one.id == run.id]
    return found


def test_it_records_a_run_that_a_worker_carries_out():
    ids = dead(3)
    run = redrive(queue="q")
    assert (run.matched, run.redriven, run.state) == (3, 0, "running")
    assert [state(job_id) for job_id in ids] == ["FAILED"] * 3
    carry_out()
    assert [state(job_id) for job_id in ids] == ["READY"] * 3
    found = of(run)
    assert (found.redriven, found.skipped, found.state, found.filters) == (3, 0, "done", {"queue": "q"})
    assert found.ended_at >= found.created_at
    assert carry_out() == []


def test_a_redriven_job_is_as_after_retry():
    one, two = dead(2)
    assert retry(one)
    redrive(job_ids=[two])
    carry_out()
    differ = {"id", "payload", "run_at", "updated_at", "created_at", "fence", "lock_token", "last_started_at"}
    first, second = (Job.objects.filter(pk=job_id).values().get() for job_id in (one, two))
    assert {name: value for name, value in first.items() if name not in differ} == {
        name: value for name, value in second.items() if name not in differ
    }
    assert (second["max_attempts"], second["allowance"], second["epoch"]) == (2, 1, 1)


def test_a_filter_chooses():
    a, b = dead(queue="a", task="app.one"), dead(queue="b", task="app.two", error=ConnectionError("x"))
    for wanted in ({"queue": "a"}, {"task": "app.one"}, {"cause": "DATA"}, {"job_ids": a}):
        assert redrive(**wanted, dry_run=True).matched == 1
    kind = job(b[0]).fingerprint
    assert redrive(fingerprint=kind, cause="data", dry_run=True).matched == 0
    redrive(fingerprint=kind)
    carry_out()
    assert [state(*a), state(*b)] == ["FAILED", "READY"]
    redrive(everything=True)
    carry_out()
    assert state(*a) == "READY"


def test_a_dry_run_records_nothing():
    dead(2)
    run = redrive(everything=True, dry_run=True)
    assert (run.id, run.matched, run.redriven, run.state) == (None, 2, 0, "dry run")
    assert redrives() == []


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({}, InvalidValue, "everything=True"),
        ({"everything": True, "queue": "q"}, InvalidValue, "contradict"),
        ({"fingerprint": "xyz"}, InvalidValue, "16 hexadecimal digits"),
        ({"fingerprint": 7}, InvalidType, "fingerprint"),
        ({"cause": "dta"}, InvalidValue, "did you mean 'data'?"),
        ({"queue": "q", "rate": "fast"}, InvalidValue, "100/m"),
        ({"queue": "q", "rate": "0/s"}, InvalidValue, "100/m"),
        ({"queue": "q", "rate": 5}, InvalidType, "rate"),
        ({"queue": "q", "canary": -1}, InvalidValue, "canary"),
        ({"queue": "q", "limit": 0}, InvalidValue, "limit"),
        ({"task": "app\udcff"}, InvalidValue, "lone surrogate"),
        ({"task": "app\x00"}, InvalidValue, "NUL"),
        ({"task": "a" * 256}, InvalidValue, "256 characters"),
        ({"task": ""}, InvalidValue, "0 characters"),
        ({"task": 7}, InvalidType, "task"),
        ({"job_ids": "17"}, InvalidType, "job_ids"),
        ({"job_ids": range(10_001)}, InvalidValue, "10000 are the most"),
    ],
)
def test_a_redrive_that_cannot_be_meant_is_refused(wrong, error, words):
    with pytest.raises(error) as caught:
        redrive(**wrong)
    assert words in str(caught.value)
    assert Redrive.objects.count() == 0


def test_nothing_that_matches_is_a_redrive_that_is_done():
    run = redrive(queue="nowhere")
    assert (run.matched, run.state, of(run).state) == (0, "done", "done")
    assert carry_out() == []


def test_a_second_redrive_with_the_same_filter_is_refused_until_the_first_has_ended():
    ids = dead(3)
    run = redrive(job_ids=ids, cause="data", canary=1)
    with transaction.atomic(), pytest.raises(InvalidValue) as caught:
        redrive(job_ids=reversed(ids), cause="DATA", rate="5/s")
    assert f"redrive {run.id} has the same filter and is under way. Nothing was recorded" in str(caught.value)
    assert [one.id for one in redrives()] == [run.id]
    assert redrive(job_ids=ids, cause="data", dry_run=True).matched == 3
    other = redrive(job_ids=ids)
    assert stop(run.id)
    again = redrive(job_ids=ids, cause="data")
    assert [one.id for one in redrives()] == [again.id, other.id, run.id]


def test_an_answer_that_was_lost_names_what_to_look_at(monkeypatch):
    dead()

    def lost(*_, **__):
        raise OutcomeUnknown("with a dedupe_key a repeat is safe")

    monkeypatch.setattr(recording, "retry_transient", lost)
    with pytest.raises(OutcomeUnknown) as caught:
        redrive(queue="q")
    assert "Look at redrives()" in str(caught.value)
    assert "dedupe_key" not in str(caught.value)


def test_what_a_redrive_is_to_retry_is_bounded_by_its_limit():
    dead(3)
    assert [redrive(queue="q", limit=limit, dry_run=True).wanted for limit in (None, 2, 9)] == [3, 2, 3]


def test_a_rolled_back_redrive_does_not_exist():
    dead()
    with transaction.atomic():
        redrive(everything=True)
        transaction.set_rollback(True)
    assert redrives() == []


def test_steps_are_small_and_each_job_is_retried_once():
    ids = dead(7)
    run = redrive(everything=True)
    assert [done.changed for done in carry_out(most=3)] == [3, 3, 1]
    assert {job(job_id).epoch for job_id in ids} == {1}
    assert of(run).redriven == 7


def test_a_look_that_finds_as_many_ids_as_it_may_and_no_more_has_looked_at_all():
    ids = dead(2)
    wanted = {"after_id": 0, "until_id": ids[-1] + 5, "read_max": 3}
    assert next_dead_ids("default", {}, most=2, **wanted) == (ids, ids[-1] + 5)
    assert next_dead_ids("default", {}, most=1, **wanted) == (ids[:1], ids[0])


def test_a_portion_of_ids_is_read_at_a_time(monkeypatch):
    monkeypatch.setattr(redrive_steps, "_PORTION", 3)
    ids = dead(7)
    run = redrive(everything=True)
    carry_out(most=2)
    assert {state(job_id) for job_id in ids} == {"READY"}
    assert (of(run).redriven, of(run).state) == (7, "done")


@pytest.mark.parametrize(("window", "portion"), [(1, 1), (2, 3), (3, 2), (4, 1), (100, 3)])
@pytest.mark.parametrize("wanted", ["task", "job_ids", "both"])
def test_the_windows_leave_no_job_out_and_take_none_twice(monkeypatch, window, portion, wanted):
    monkeypatch.setattr(redrive_steps, "_WINDOW", window)
    monkeypatch.setattr(redrive_steps, "_PORTION", portion)
    ids = [dead(task=f"app.{name}")[0] for name in "aababbbaa"]
    mine = [job_id for job_id, name in zip(ids, "aababbbaa", strict=True) if name == "a"]
    by_id = mine if wanted == "job_ids" else ids
    run = redrive(
        **({} if wanted == "job_ids" else {"task": "app.a"}), **({} if wanted == "task" else {"job_ids": by_id})
    )
    discard(mine[1])
    carry_out(most=2)
    assert [state(job_id) for job_id in ids if job_id not in mine] == ["FAILED"] * 4
    assert [state(job_id) for job_id in mine] == ["READY", "CANCELED", "READY", "READY", "READY"]
    assert (of(run).redriven, of(run).state) == (4, "done")
    assert {job(job_id).epoch for job_id in mine if job_id != mine[1]} == {1}


def test_limit_is_the_most_that_is_retried():
    ids = dead(5)
    run = redrive(everything=True, limit=3)
    carry_out(most=2)
    assert [state(job_id) for job_id in ids] == ["READY"] * 3 + ["FAILED"] * 2
    assert (of(run).redriven, of(run).state) == (3, "done")


def test_a_job_that_fails_again_or_later_is_not_retried_by_the_same_redrive():
    first, *_ = dead(2)
    later = make_job(max_attempts=1)
    run = redrive(everything=True)
    step(using="default", most=1)
    for lease in claim("q", 2, worker="w"):
        set_columns(lease.job_id, max_attempts=1)
        fail(lease, error=ValueError("again"), retry=False)
    carry_out()
    assert [state(first), state(later)] == ["FAILED", "FAILED"]
    assert (of(run).redriven, of(run).skipped, of(run).state) == (2, 0, "done")


def test_jobs_that_others_have_changed_are_left_as_they_are():
    one, two, three = dead(3)
    run = redrive(job_ids=[one, two, three])
    assert discard(one)
    assert retry(two)
    carry_out()
    assert [state(one), state(two), state(three)] == ["CANCELED", "READY", "READY"]
    assert job(two).epoch == 1
    assert of(run).redriven == 1


def test_a_job_that_was_retried_by_hand_and_failed_again_before_its_turn_stays_failed():
    first, second = dead(2)
    run = redrive(everything=True)
    assert retry(second)
    fail(claim_one(), error=ValueError("again"), retry=False)
    carry_out()
    assert [state(first), state(second)] == ["READY", "FAILED"]
    assert (of(run).redriven, of(run).skipped, of(run).state) == (1, 1, "done")


def test_a_job_whose_dedupe_key_another_one_has_stays_failed():
    old = enqueue("q", 1, dedupe_key="k", max_attempts=1)
    fail(claim_one(), error=ValueError("x"))
    set_columns(old, dedupe_key=None, released_key=b"k")
    new = enqueue("q", 2, dedupe_key="k")
    run = redrive(everything=True)
    carry_out()
    assert [state(old), state(new)] == ["FAILED", "READY"]
    assert (of(run).redriven, of(run).skipped, of(run).state) == (0, 1, "done")


def test_jobs_of_an_ordering_key_run_in_its_order():
    ids = [enqueue("q", n, ordering_key=key, max_attempts=1) for n, key in enumerate("abab")]
    for _ in range(2):
        for lease in claim("q", 9, worker="w"):
            fail(lease, error=ValueError("x"))
            assert Job.objects.filter(status=3).exists()
        for key in "ab":
            resume("q", key)
    assert {state(job_id) for job_id in ids} == {"FAILED"}
    redrive(everything=True)
    carry_out(most=3)
    order = []
    while leases := claim("q", 9, worker="w"):
        order += [lease.job_id for lease in leases]
        assert len(leases) <= 2
        for lease in leases:
            ack(lease)
    assert [one for one in order if one in ids[::2]] == ids[::2]
    assert [one for one in order if one in ids[1::2]] == ids[1::2]


def test_the_rest_waits_for_the_canary_and_goes_on_when_it_has_passed():
    ids = dead(5)
    run = redrive(everything=True, canary=2)
    assert run.state == "canary"
    carry_out()
    assert [state(job_id) for job_id in ids] == ["READY"] * 2 + ["FAILED"] * 3
    ack(claim_one())
    due_now()
    carry_out()
    assert of(run).state == "canary"
    ack(claim_one())
    due_now()
    carry_out()
    assert [state(job_id) for job_id in ids] == ["DONE"] * 2 + ["READY"] * 3
    assert (of(run).redriven, of(run).state) == (5, "done")


def test_a_canary_that_fails_its_next_attempt_stops_the_redrive():
    ids = dead(5)
    run = redrive(everything=True, canary=2)
    carry_out()
    set_columns(ids[0], max_attempts=9)
    fail(claim_one(), error=ConnectionError("still down"))
    due_now()
    carry_out()
    found = of(run)
    assert (found.state, found.redriven) == ("stopped", 2)
    assert found.reason == f"job {ids[0]} of the canary failed in its next attempt; cause: dependency"
    assert [state(job_id) for job_id in ids[2:]] == ["FAILED"] * 3
    assert carry_out() == []


def test_a_canary_that_nobody_ran_stops_the_redrive():
    ids = dead(3)
    run = redrive(everything=True, canary=1)
    carry_out()
    assert cancel(ids[0])
    due_now()
    carry_out()
    assert (of(run).state, "no job of the canary has passed" in of(run).reason) == ("stopped", True)


@pytest.mark.parametrize("status", ["PROCESSING", "FAILED"])
def test_a_job_of_the_canary_that_was_retried_by_hand_neither_holds_up_the_rest_nor_stops_it(status):
    by_hand, passes, rest = dead(3)
    run = redrive(everything=True, canary=2)
    carry_out()
    assert cancel(by_hand)
    assert retry(by_hand)
    for lease in claim("q", 2, worker="w"):
        if lease.job_id == passes:
            ack(lease)
    if status == "FAILED":
        # As a crash leaves it that counts as no attempt.
        set_columns(by_hand, status=Job.Status.FAILED, locked_by=None, lock_token=None, locked_at=None, lock_until=None)
    assert state(by_hand) == status
    due_now()
    carry_out()
    assert (of(run).state, state(rest)) == ("done", "READY")


def test_a_canary_of_all_jobs_ends_when_it_has_passed():
    dead(2)
    run = redrive(everything=True, canary=10)
    carry_out()
    assert of(run).state == "canary"
    for lease in claim("q", 2, worker="w"):
        ack(lease)
    due_now()
    carry_out()
    assert (of(run).state, of(run).redriven) == ("done", 2)


def test_a_stopped_redrive_retries_nothing_more():
    ids = dead(4)
    run = redrive(everything=True)
    step(using="default", most=2)
    assert stop(run.id) is True
    assert carry_out() == []
    assert [state(job_id) for job_id in ids] == ["READY"] * 2 + ["FAILED"] * 2
    assert (of(run).state, of(run).reason) == ("stopped", "stopped by hand")
    assert stop(run.id) is False
    assert stop(0) is False


def test_the_newest_redrives_are_first():
    ids = [redrive(queue="q").id for _ in range(3)]
    assert [run.id for run in redrives()] == ids[::-1]
    assert [run.id for run in redrives(limit=1)] == ids[-1:]


@pytest.mark.parametrize("rate", ["50/s", "3/s", "100/m", "2500/s", "20/30s"])
@pytest.mark.parametrize("round_seconds", [0.2, 1.2])
def test_the_rate_is_held_within_five_percent(rate, round_seconds):
    per_second = parse_rate(rate)
    start = datetime(2030, 1, 1, tzinfo=UTC)
    run = Redrive(per_second=per_second, due_at=start)
    run.now, done, chance = start, 0, random.Random(7)
    goal = min(100_000, max(200, int(per_second * 60)))
    while done < goal:
        while run.due_at <= run.now and done < goal:
            taken = max(0, min(500, redrive_steps._allowed(run)))
            done += taken
            redrive_steps._pace(run, taken, waits=False)
        run.now += timedelta(seconds=round_seconds * chance.uniform(0.8, 1.2))
        allowed = 1 + per_second * (run.now - start).total_seconds()
        assert done <= allowed + 1
    seconds = (run.now - start).total_seconds()
    assert done / per_second == pytest.approx(seconds, rel=0.05)


def test_jobs_that_were_retried_before_a_locked_one_count_against_the_rate():
    start = datetime(2030, 1, 1, tzinfo=UTC)
    run = Redrive(per_second=10, due_at=start)
    run.now = run.paced_at = start
    run.now += timedelta(seconds=1)
    assert redrive_steps._allowed(run) == 10
    redrive_steps._pace(run, 10, waits=True)
    assert (redrive_steps._allowed(run), run.due_at - run.now) == (0, timedelta(seconds=LATER_SECONDS))


def test_a_redrive_with_a_rate_retries_no_more_than_the_rate_allows():
    ids = dead(5)
    redrive(everything=True, rate="1/h")
    carry_out()
    assert [state(job_id) for job_id in ids] == ["READY"] + ["FAILED"] * 4
    due_now()
    carry_out()
    assert [state(job_id) for job_id in ids] == ["READY"] + ["FAILED"] * 4
    Redrive.objects.update(paced_at=datetime(2001, 1, 1, tzinfo=UTC), due_at=datetime(2001, 1, 1, tzinfo=UTC))
    carry_out()
    assert [state(job_id) for job_id in ids] == ["READY"] * 2 + ["FAILED"] * 3


def test_one_look_without_a_redrive_is_one_statement(django_assert_num_queries):
    step(using="default")
    with django_assert_num_queries(1):
        assert step(using="default") is None


@committed  # ANALYZE TABLE of MySQL commits
def test_no_statement_of_a_redrive_scans_the_table():
    dead(20)
    make_jobs(500)
    redrive(queue="nowhere", dry_run=True)
    redrive(queue="q")
    Redrive.objects.bulk_create(
        Redrive(phase="done", filters={}, matched=0, until_id=0, due_at=None) for _ in range(300)
    )
    with connection.cursor() as cursor:
        for table in ("job_queue", "job_audit") if VENDOR != "sqlite" else ():
            cursor.execute(f"ANALYZE {'' if VENDOR == 'postgres' else 'TABLE '}{table}")
    with CaptureQueriesContext(connection) as captured:
        carry_out()
    looks = [one["sql"] for one in captured if one["sql"].startswith(("SELECT", "UPDATE")) and " FROM" in one["sql"]]
    assert len(looks) >= 4
    for sql in looks:
        with connection.cursor() as cursor:
            cursor.execute(("EXPLAIN QUERY PLAN " if VENDOR == "sqlite" else "EXPLAIN ") + sql)
            plan = cursor.fetchall()
        if " IN (" not in sql:  # keys of a table of this size
            assert not any(word in str(plan) for word in ("Seq Scan", "Table scan", "SCAN job")), f"{sql}: {plan}"
        if "IS NULL AND" in sql and "ORDER BY" in sql:
            assert "ix_lease" in str(plan), plan
        if "ORDER BY" in sql and VENDOR == "postgres" and "+ 0" in sql and "FOR UPDATE" not in sql:
            assert "ix_dead" in str(plan), plan
        if "due_at" in sql and "LIMIT 1" in sql and "FOR UPDATE" not in sql and VENDOR != "sqlite":
            assert "ix_audit_due" in str(plan), plan


def test_a_redrive_whose_step_raises_is_stopped_and_others_go_on():
    a, b = dead(queue="a"), dead(queue="b")
    broken, sound = redrive(queue="a"), redrive(queue="b")
    Redrive.objects.filter(pk=broken.id).update(filters={"color": "red"}, due_at=datetime(2001, 1, 1, tzinfo=UTC))
    carry_out()
    assert (of(broken).state, "color" in of(broken).reason) == ("stopped", True)
    assert (of(sound).state, state(*b), state(*a)) == ("done", "READY", "FAILED")


def test_a_redrive_whose_step_meets_a_lock_lets_others_go_first(monkeypatch):
    a, b = dead(queue="a"), dead(queue="b")
    blocked, sound = redrive(queue="a"), redrive(queue="b")
    Redrive.objects.filter(pk=blocked.id).update(due_at=datetime(2001, 1, 1, tzinfo=UTC))
    retry_locked, tries = redrive_steps.retry_locked, []

    def refused(jobs, *, using):
        if [job.pk for job in jobs] == a:
            tries.append(1)
            raise DatabaseBusy("a lock")
        return retry_locked(jobs, using=using)

    monkeypatch.setattr(redrive_steps, "retry_locked", refused)
    carry_out()
    assert (of(blocked).state, of(sound).state, state(*b), len(tries)) == ("running", "done", "READY", 1)
    monkeypatch.undo()
    due_now()
    carry_out()
    assert (of(blocked).state, state(*a)) == ("done", "READY")


def test_a_rate_of_less_than_one_in_a_year_is_refused():
    with pytest.raises(InvalidValue, match="less than one in a year"):
        redrive(everything=True, rate="0.000001/d")


def test_a_canary_that_fails_stops_the_redrive_before_the_whole_canary_was_retried():
    ids = dead(4)
    run = redrive(everything=True, canary=3, rate="1/h")
    carry_out()
    fail(claim_one(), error=ConnectionError("still down"))
    Redrive.objects.update(paced_at=datetime(2001, 1, 1, tzinfo=UTC), due_at=datetime(2001, 1, 1, tzinfo=UTC))
    carry_out()
    assert (of(run).state, of(run).redriven) == ("stopped", 1)
    assert [state(job_id) for job_id in ids[1:]] == ["FAILED"] * 3


def test_a_step_that_has_read_a_redrive_before_its_stop_writes_nothing():
    dead()
    run = redrive(everything=True)
    before = Redrive.objects.get(pk=run.id).steps
    assert stop(run.id)
    assert not Redrive.objects.filter(pk=run.id, steps=before).exists()


def test_jobs_that_have_changed_do_not_wait_for_a_turn_at_the_rate():
    first, *changed, last = dead(5)
    run = redrive(everything=True, rate="1/h")
    carry_out()
    for job_id in changed:
        assert discard(job_id)
    Redrive.objects.update(paced_at=datetime(2001, 1, 1, tzinfo=UTC), due_at=datetime(2001, 1, 1, tzinfo=UTC))
    assert len(carry_out()) == 1
    assert [state(first), state(last)] == ["READY", "READY"]
    assert (of(run).redriven, of(run).skipped, of(run).state) == (2, 3, "done")


@pytest.mark.parametrize("rate", [None, "1000/s"])
def test_a_dead_letter_that_matches_no_more_when_its_turn_comes_is_left_as_it_is(rate):
    first, second = dead(2)
    run = redrive(queue="q", rate=rate)
    step(using="default", most=1)
    set_columns(second, queue="other")
    due_now()
    carry_out()
    assert [state(first), state(second)] == ["READY", "FAILED"]
    assert (of(run).redriven, of(run).skipped, of(run).state) == (1, 1, "done")
