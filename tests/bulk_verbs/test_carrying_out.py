"""Bulk verbs are carried out in committed chunks; whatever dies in between, each job is changed once."""

import threading
from collections import Counter

import pytest
from django.core.management import call_command
from django.db import IntegrityError, OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from jobqueue import bulk_verbs, enqueue
from jobqueue.bulk_verbs import Who
from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.dead_letters import redrive
from jobqueue.exceptions import DatabaseBusy, InvalidValue, OutcomeUnknown
from jobqueue.maintenance.cleaner import CLEANERS
from jobqueue.models import AuditEvent, Job, JobTag
from jobqueue.models.job import HELD_GATE
from jobqueue.runs import bulk_steps, walking
from jobqueue.runs.bulk_steps import step
from jobqueue.runs.stepping import Runner
from jobqueue.signals import job_canceled
from jobqueue.transitions import fail, release_held, retry
from tests.dead_letters.test_redrive import put_off_for_long  # noqa: F401
from tests.factories import (
    claim_one,
    job,
    lease_with,
    make_in_state,
    make_job,
    make_jobs,
    row,
    seconds_from_now,
    set_columns,
    state,
)
from tests.marks import committed, finding
from tests.patience import patient
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db

ANN = Who("1", "ann", "admin")


def record(verb="retry", filters=None, **options):
    return bulk_verbs.record(verb, {"queue": "q"} if filters is None else filters, who=ANN, **options)


def failed(count=1, queue="q"):
    return [make_in_state("FAILED", queue=queue) for _ in range(count)]


def read(event):
    return AuditEvent.objects.get(pk=event.pk)


def finish(most=100):
    """Do chunks until none is due; what they did."""
    found = []
    while (done := step(using="default", most=most)) is not None:
        found.append(done)
        assert done.error is None, done.error
    return found


def test_of_named_jobs_those_with_the_tag_are_changed():
    """A job has other tags than the one that is asked for, and a job with that tag is not named."""
    named, other, unnamed = failed(3)
    for job_id, tags in ((named, ("a", "b")), (other, ("b",)), (unnamed, ("a",))):
        JobTag.objects.bulk_create(JobTag(job_id=job_id, tag=tag) for tag in tags)
    record(filters={"job_ids": f"{named},{other}", "tag": "a", "state": "failed"})
    finish()
    assert [state(job_id) for job_id in (named, other, unnamed)] == ["READY", "FAILED", "FAILED"]


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        ("retry", "FAILED", "READY"),
        ("retry", "CANCELED", "READY"),
        ("cancel", "READY", "CANCELED"),
        ("discard", "FAILED", "CANCELED"),
        ("release", "PROCESSING", "READY"),
    ],
)
def test_each_verb_changes_the_jobs_that_match_and_no_others(verb, before, after):
    mine, other = make_in_state(before), make_in_state(before, queue="other")
    event = record(verb)
    assert event.matched == 1
    finish()
    assert [state(mine), state(other)] == [after, before]
    done = read(event)
    assert (done.phase, done.changed, done.refused, done.due_at) == ("done", 1, 0, None)
    assert done.started_at is not None
    assert done.ended_at is not None


def begin(job_id):
    """A worker claims the job."""
    assert claim_one(worker="y").job_id == job_id


def move_to_another_worker(job_id):
    """Its worker gives the job back, and another one claims it."""
    assert release_held(job_id)
    begin(job_id)


def fail_anew(job_id):
    """The job is retried, and fails in another way."""
    retry(job_id)
    fail(lease_with(claim_one(), max_attempts=1), error=ValueError("another one"))


def changed_to(**columns):
    return lambda job_id: set_columns(job_id, **columns)


MATCHES_NO_MORE = [
    ("cancel", {"state": "ready", "queue": "q"}, "READY", begin),
    ("cancel", {"state": "ready"}, "READY", changed_to(run_at=UtcNowPlus(3600))),
    ("cancel", {"queue": "q"}, "READY", changed_to(queue="other")),
    ("cancel", {"state": "running"}, "PROCESSING", release_held),
    ("discard", {"state": "ready"}, "READY", changed_to(gate=HELD_GATE)),
    ("retry", {"state": "failed"}, "FAILED", changed_to(status=Job.Status.CANCELED)),
    ("release", {"worker": "owner"}, "PROCESSING", move_to_another_worker),
    ("release", {"state": "expired"}, "PROCESSING", changed_to(lock_until=UtcNowPlus(600))),
    ("prune", {"state": "failed"}, "FAILED", changed_to(status=Job.Status.DONE)),
    ("prune", {"queue": "q"}, "DONE", changed_to(queue="other")),
]


@pytest.mark.parametrize(
    ("verb", "filters", "before", "meanwhile"),
    [
        *(pytest.param(*case, marks=finding("F6")) for case in MATCHES_NO_MORE),
        ("discard", {"cause": "lost"}, "FAILED", fail_anew),
        ("retry", {"fingerprint": "0123456789abcdef"}, "FAILED", fail_anew),
    ],
)
def test_a_job_that_matches_no_more_when_it_is_locked_is_left_as_it_is(monkeypatch, verb, filters, before, meanwhile):
    job_id = make_in_state(before)
    if before == "FAILED":
        set_columns(job_id, cause="lost", fingerprint="0123456789abcdef")
    elif filters.get("state") == "expired":
        set_columns(job_id, lock_until=UtcNowPlus(-5))
    find, rows = bulk_steps.next_ids, []

    def others_follow(*args, **kwargs):
        found = find(*args, **kwargs)
        meanwhile(job_id)
        rows.append(row(job_id))
        return found

    monkeypatch.setattr(bulk_steps, "next_ids", others_follow)
    event = record(verb, filters)
    assert event.matched == 1
    finish()
    assert row(job_id) == rows[0]
    assert (read(event).changed, read(event).refused) == (0, 1)


def test_a_job_that_ended_at_the_instant_of_the_record_is_changed():
    (job_id,), event = failed(), record()
    set_columns(job_id, finished_at=read(event).created_at)
    finish()
    assert state(job_id) == "READY"


def test_prune_deletes_ended_jobs_and_leaves_the_others():
    ended, waiting = [make_in_state("DONE"), *failed()], make_job()
    event = record("prune")
    finish()
    assert list(Job.objects.values_list("pk", flat=True)) == [waiting]
    assert read(event).changed == len(ended)


def test_where_a_row_of_the_project_protects_a_job_the_others_are_deleted_one_by_one(monkeypatch):
    make_in_state("DONE"), make_in_state("DONE")

    def refuse(*_, **__):
        raise IntegrityError("a row refers to one of them")

    monkeypatch.setattr("jobqueue.runs.bulk_steps.delete_jobs", refuse)
    event = record("prune")
    finish()
    assert not Job.objects.exists()
    assert read(event).changed == 2


def test_jobs_that_are_added_later_are_left_alone():
    first = failed(2)
    event = record()
    later = failed()
    finish()
    assert [state(job_id) for job_id in [*first, *later]] == ["READY", "READY", "FAILED"]
    assert read(event).changed == 2


def test_jobs_that_wait_and_were_added_later_are_not_canceled():
    first = make_job()
    event = record("cancel")
    later = make_job()
    finish()
    assert [state(first), state(later)] == ["CANCELED", "READY"]
    assert read(event).changed == 1


def test_it_goes_on_in_chunks_and_each_has_its_progress_committed():
    ids = failed(5)
    event = record()
    done = step(using="default", most=2)
    assert (done.changed, done.phase, done.before) == (2, "running", "")
    assert [state(job_id) for job_id in ids] == ["READY", "READY", "FAILED", "FAILED", "FAILED"]
    assert (read(event).after_id, read(event).phase) == (ids[1], "running")
    finish(2)
    assert (read(event).changed, read(event).phase) == (5, "done")


@pytest.mark.parametrize("where", ["before the jobs", "after the jobs"])
def test_a_chunk_that_breaks_leaves_nothing_behind_and_is_done_again(monkeypatch, where):
    ids, event = failed(4), record()
    step(using="default", most=2)
    change = bulk_steps.change

    def broken(*args, **options):
        if where == "after the jobs":
            change(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk_steps, "change", broken)
    with pytest.raises(KeyboardInterrupt):
        step(using="default", most=2)
    assert [state(job_id) for job_id in ids] == ["READY", "READY", "FAILED", "FAILED"]
    assert (read(event).changed, read(event).after_id) == (2, ids[1])
    monkeypatch.setattr(bulk_steps, "change", change)
    finish()
    assert [job(job_id).epoch for job_id in ids] == [1, 1, 1, 1]
    assert read(event).changed == 4


def test_a_chunk_whose_commit_was_not_answered_is_not_done_twice(monkeypatch):
    ids, event = failed(2), record()
    real, calls = bulk_steps._write, []

    def lost(*args):
        calls.append(real(*args))
        return calls[-1]

    def twice(verb, work, *, using):
        work()
        return work()

    monkeypatch.setattr(bulk_steps, "_write", lost)
    monkeypatch.setattr(bulk_steps, "retry_transient", twice)
    assert step(using="default").changed == 2
    assert calls[1] is None
    assert [job(job_id).epoch for job_id in ids] == [1, 1]
    assert (read(event).changed, read(event).steps) == (2, 1)


def test_a_lock_puts_the_chunk_off_and_others_go_first(monkeypatch, caplog):
    failed(), failed(queue="other")
    event, other = record(), record(filters={"queue": "other"})

    def busy(*args, **options):
        raise DatabaseBusy("locked")

    runner = Runner(bulk_steps.BULK_VERBS)
    with monkeypatch.context() as patched, caplog.at_level("INFO", "jobqueue.worker"):
        patched.setattr(bulk_steps, "change", busy)
        AuditEvent.objects.filter(pk=event.pk).update(due_at="2020-01-01T00:00:00Z")
        runner.run_once(load(), using="default")
        assert runner.more, "another one may be due"
        AuditEvent.objects.filter(pk=event.pk).update(due_at="2020-01-01T00:00:00Z")
        runner.run_once(load(), using="default")
    assert caplog.text.count("is waiting, retrying every second: locked") == 1
    finish()
    assert [read(event).phase, read(other).phase] == ["waiting", "done"]
    AuditEvent.objects.filter(pk=event.pk).update(due_at="2020-01-01T00:00:00Z")
    finish()
    assert read(event).phase == "done"


def test_signals_are_sent_after_the_commit_and_not_for_a_chunk_that_is_undone(monkeypatch):
    ids, event, told = make_jobs(2), record("cancel"), []
    change = bulk_steps.change

    def receiver(job_id, **facts):
        told.append((job_id, read(event).changed))

    def undone(*args, **options):
        change(*args, **options)
        raise DatabaseBusy("locked")

    job_canceled.connect(receiver)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(bulk_steps, "change", undone)
            step(using="default")
        assert (told, [state(job_id) for job_id in ids]) == ([], ["READY"] * 2)
        AuditEvent.objects.filter(pk=event.pk).update(due_at="2020-01-01T00:00:00Z")
        finish()
    finally:
        job_canceled.disconnect(receiver)
    assert told == [(job_id, 2) for job_id in ids]


def test_what_was_recorded_and_cannot_be_read_again_is_not_reported_as_an_error_of_the_database():
    def refuse(execute, sql, *rest):
        if sql.startswith("SELECT") and "job_audit" in sql:
            raise OperationalError("gone")
        return execute(sql, *rest)

    with connection.execute_wrapper(refuse), pytest.raises(OutcomeUnknown, match="was recorded"):
        record()
    assert AuditEvent.objects.count() == 1


def test_an_error_of_the_database_is_raised_and_the_chunk_is_put_off(monkeypatch):
    failed()
    event = record()

    def refused(*args, **options):
        raise OperationalError("no right")

    monkeypatch.setattr(bulk_steps, "change", refused)
    with pytest.raises((OperationalError, DatabaseBusy)):
        step(using="default")
    assert read(event).ended_at is None
    assert step(using="default") is None


def test_a_chunk_that_cannot_be_done_ends_it_as_failed(monkeypatch):
    failed()
    event = record()

    def broken(*args, **options):
        raise ZeroDivisionError("a\x00b")

    monkeypatch.setattr(bulk_steps, "change", broken)
    step(using="default")
    found = read(event)
    assert (found.phase, found.due_at) == ("failed", None)
    assert found.problem.startswith("ZeroDivisionError")
    assert step(using="default") is None


def test_stop_ends_it_and_a_chunk_that_was_read_before_writes_nothing(monkeypatch):
    ids, event = failed(4), record()
    step(using="default", most=2)
    real = bulk_steps.next_ids

    def stopped_meanwhile(*args, **options):
        found = real(*args, **options)
        assert bulk_verbs.stop(event.pk, by="bob")
        return found

    monkeypatch.setattr(bulk_steps, "next_ids", stopped_meanwhile)
    assert step(using="default", most=2) is None
    assert [state(job_id) for job_id in ids] == ["READY", "READY", "FAILED", "FAILED"]
    found = read(event)
    assert (found.phase, found.problem, found.changed) == ("stopped", "stopped by bob", 2)
    assert not bulk_verbs.stop(event.pk)
    assert not bulk_verbs.stop(10**6)


def test_a_job_whose_dedupe_key_another_one_has_is_refused_and_counted():
    first = enqueue("q", {}, dedupe_key="k")
    set_columns(first, max_attempts=1)
    from jobqueue.transitions import fail

    fail(claim_one()._replace(max_attempts=1), error="boom")
    Job.objects.filter(pk=first).update(dedupe_key=None, released_key=b"k")
    enqueue("q", {}, dedupe_key="k")
    event = record()
    finish()
    assert (read(event).changed, read(event).refused) == (0, 1)
    assert state(first) == "FAILED"


def test_a_wide_gap_of_ids_ends_in_few_steps(monkeypatch):
    monkeypatch.setattr(walking, "WINDOW", 10)
    first = make_in_state("FAILED")
    Job.objects.filter(pk=first).update(id=first + 5000)
    event = record(filters={"state": "failed"})
    assert len(finish()) <= 2
    assert read(event).changed == 1


@pytest.mark.parametrize(
    ("verb", "filters"), [("release", {}), ("retry", {"state": "failed"}), ("cancel", {"queue": "q"})]
)
def test_ids_of_eight_bytes_are_looked_for(verb, filters):
    wide = 2**40
    looked = walking.next_ids(verb, filters, after_id=wide, until_id=wide + 7, most=5, using="default")
    assert looked == ([], wide + 7)


def test_delayed_jobs_run_now_only_if_their_state_was_chosen():
    delayed = make_job(run_at=UtcNowPlus(600))
    record()
    finish()
    assert seconds_from_now(job(delayed).run_at) > 500
    record(filters={"state": "scheduled"})
    finish()
    assert seconds_from_now(job(delayed).run_at) < 500


def test_without_a_filter_everything_must_be_said():
    with pytest.raises(InvalidValue, match="needs a filter"):
        record(filters={})
    ids = [*failed(), *failed(queue="other")]
    record(filters={}, everything=True)
    finish()
    assert {state(job_id) for job_id in ids} == {"READY"}


def test_reap_leases_and_the_chore_carry_it_out():
    failed(2)
    event = record()
    call_command("reap_leases", verbosity=0)
    assert read(event).phase == "done"
    failed(3, "z")
    record(filters={"queue": "z"})
    found = Runner(bulk_steps.BULK_VERBS).run_once(load(), using="default")
    assert found == Counter(bulk_jobs_changed=3)


def test_old_ones_are_deleted_and_those_under_way_stay(settings):
    settings.JOBQUEUE = {"AUDIT_RETENTION_SECONDS": 60}
    old, running = record(), record(filters={"queue": "other"})
    finish()
    AuditEvent.objects.filter(pk=running.pk).update(ended_at=None)
    redriven = redrive(queue="nowhere").id
    AuditEvent.all_kinds.filter(pk__in=[old.pk, redriven]).update(ended_at="2020-01-01T00:00:00Z")
    assert CLEANERS["audit_events"].run_once(load(), using="default").total() == 1
    assert set(AuditEvent.all_kinds.values_list("pk", flat=True)) == {running.pk, redriven}


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer at a time")
def test_two_that_carry_it_out_at_once_change_each_job_once():
    ids, event = failed(40), record()
    begin = threading.Barrier(2)

    def run():
        begin.wait(patient())
        while read(event).ended_at is None:
            step(using="default", most=3)
        connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient())
    assert {job(job_id).epoch for job_id in ids} == {1}
    assert (read(event).changed, read(event).refused) == (40, 0)


def test_an_idle_look_is_one_statement(django_assert_num_queries):
    runner = Runner(bulk_steps.BULK_VERBS)
    runner.run_once(load(), using="default")
    with django_assert_num_queries(1):
        runner.run_once(load(), using="default")
    assert not runner.more


def test_a_call_ends_behind_some_windows_without_a_match_and_the_next_one_goes_on(monkeypatch):
    monkeypatch.setattr(walking, "WINDOW", 2)
    monkeypatch.setattr(walking, "EMPTY_MAX", 3)
    first, *_ = make_jobs(20)
    rare = make_job(task="shop.tasks.rare")
    at, calls = first - 1, []
    while at < rare:
        with CaptureQueriesContext(connection) as captured:
            ids, at = walking.next_ids(
                "cancel", {"task": "shop.tasks.rare"}, after_id=at, until_id=rare, most=5, using="default"
            )
        calls.append(ids)
        # A window is a seek and a read.
        assert len(captured) <= 2 * 3
    assert calls == [[], [], [], [rare]]
