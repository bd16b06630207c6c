"""Bulk actions beside each other, beside a redrive, beside Stop, and beside jobs that change meanwhile."""

import threading

import pytest

from jobqueue import bulk_verbs
from jobqueue.bulk_verbs import Who
from jobqueue.db.clock import UtcNowPlus
from jobqueue.dead_letters import redrive, redrives
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import AuditEvent, Job, Redrive
from jobqueue.runs import bulk_steps, walking
from jobqueue.runs.bulk_steps import step
from jobqueue.runs.redrive_steps import step as redrive_step
from jobqueue.transitions import ack, claim, fail, retry
from tests.factories import job, make_in_state, make_job, make_jobs, state
from tests.marks import committed
from tests.patience import patient, wait_until
from tests.races.actors import Actor, all_at_once, holding
from tests.races.stepping import walk
from tests.settings import VENDOR

pytestmark = committed

ANN, BOB = Who("1", "ann", "admin"), Who("2", "bob", "admin")


def record(verb="retry", who=ANN, **filters):
    return bulk_verbs.record(verb, filters or {"queue": "q"}, who=who)


def read(event):
    return AuditEvent.objects.get(pk=event.pk)


def failed(count):
    return [make_in_state("FAILED") for _ in range(count)]


def fail_all():
    """Run what is due; each attempt fails."""
    while leases := claim("q", 9, worker="w"):
        for lease in leases:
            fail(lease, error=ValueError("x"), retry=False)


def finish(*, most=100, between=lambda: None):
    """Do chunks until no action is under way; one that met a lock is due again in a second."""

    def goes_on():
        while AuditEvent.objects.filter(ended_at__isnull=True).exists():
            found = step(using="default", most=most)
            between()
            if found is None:
                return False
        return True

    wait_until(goes_on, what="the end of a bulk action")


def epochs(ids):
    return [job(job_id).epoch for job_id in ids]


def test_of_two_equal_actions_recorded_at_once_each_job_is_changed_by_one():
    ids = failed(20)
    found = all_at_once([lambda: record(who=ANN), lambda: record(who=BOB)])
    assert {event.user_name for event in found} == {"ann", "bob"}

    def work():
        finish(most=3)

    assert all_at_once([work, work]) == [None, None]
    ends = [read(event) for event in found]
    assert [end.phase for end in ends] == ["done", "done"]
    assert sum(end.changed for end in ends) == 20
    assert epochs(ids) == [1] * 20


def test_a_job_that_fails_again_is_not_retried_by_the_action_of_another_admin():
    """Both are recorded before any job is retried, and the jobs fail again between two chunks."""
    ids = failed(6)
    found = [record(who=ANN), record(who=BOB)]
    finish(most=2, between=fail_all)
    ends = [read(event) for event in found]
    assert [end.phase for end in ends] == ["done", "done"]
    assert sum(end.changed for end in ends) == 6
    assert epochs(ids) == [1] * 6
    assert {state(job_id) for job_id in ids} == {"FAILED"}


def test_an_action_recorded_after_the_second_failure_retries_it_again():
    ids = failed(2)
    for count in (1, 2):
        record()
        finish()
        assert epochs(ids) == [count] * 2
        fail_all()


def test_a_held_job_that_crashes_again_is_not_run_again_by_the_action_of_another_admin():
    held = make_job(gate=2)
    found = [record(who=who, state="held") for who in (ANN, BOB)]

    def crash():
        for lease in claim("q", worker="w"):
            Job.objects.filter(pk=lease.job_id).update(
                status=0, gate=2, locked_by=None, lock_token=None, locked_at=None, lock_until=None
            )

    finish(between=crash)
    assert sorted(read(event).changed for event in found) == [0, 1]
    assert job(held).fence == 1


def test_two_chunks_in_each_order_of_steps_change_each_job_once():
    def prepare():
        for model in (Job, AuditEvent):
            model.objects.all().delete()
        return failed(3), [record(who=ANN), record(who=BOB)]

    def chunk(given):
        return step(using="default")

    def check(given, outcomes):
        ids, events = given
        finish()
        assert epochs(ids) == [1] * 3, outcomes
        assert sum(read(event).changed for event in events) == 3, outcomes
        assert {read(event).phase for event in events} == {"done"}

    assert walk(prepare, chunk, chunk, check, stride=4) > 2


def test_beside_a_redrive_each_dead_letter_comes_back_once():
    ids = failed(12)
    redrive(everything=True)
    event = record()

    def next_step():
        redrive_step(using="default", most=2)
        fail_all()

    finish(most=3, between=next_step)
    while Redrive.objects.filter(due_at__isnull=False).exists():
        next_step()
    (run,) = redrives()
    assert (run.state, read(event).phase) == ("done", "done")
    assert run.redriven + read(event).changed == 12
    assert min(run.redriven, read(event).changed) > 0
    assert epochs(ids) == [1] * 12


def test_a_redrive_and_an_action_let_loose_bring_each_dead_letter_back_once():
    ids = failed(30)
    redrive(everything=True)
    event = record()

    def redriving():
        while Redrive.objects.filter(due_at__isnull=False).exists():
            if redrive_step(using="default", most=3) is None:
                return False
        return True

    assert all_at_once([lambda: wait_until(redriving, what="the end of the redrive"), lambda: finish(most=3)]) == [
        True,
        None,
    ]
    (run,) = redrives()
    assert (run.state, read(event).phase) == ("done", "done")
    assert run.redriven + read(event).changed == 30
    assert epochs(ids) == [1] * 30


def test_dead_letters_that_a_redrive_may_bring_back_are_not_deleted():
    ids = failed(3)
    redrive(everything=True)
    event = record("prune")
    finish()
    assert (read(event).changed, read(event).refused) == (0, 3)
    assert [state(job_id) for job_id in ids] == ["FAILED"] * 3


def test_stop_waits_for_the_chunk_that_is_under_way_and_ends_the_action(monkeypatch):
    ids, event = failed(4), record()
    inside, go_on = threading.Event(), threading.Event()
    change = bulk_steps.change

    def slow(*args, **options):
        done = change(*args, **options)
        inside.set()
        assert go_on.wait(patient())
        return done

    monkeypatch.setattr(bulk_steps, "change", slow)
    chunk = Actor(step, using="default", most=2)
    assert inside.wait(patient())
    stopping = Actor(bulk_verbs.stop, event.pk, by="bob")
    assert stopping.is_blocked()
    go_on.set()
    assert chunk.result().changed == 2
    assert stopping.result() is True
    found = read(event)
    assert (found.phase, found.problem, found.changed, found.due_at) == ("stopped", "stopped by bob", 2, None)
    assert step(using="default") is None
    assert [state(job_id) for job_id in ids] == ["READY", "READY", "FAILED", "FAILED"]


def test_stop_in_each_order_of_steps_leaves_the_count_of_what_was_changed():
    def prepare():
        for model in (Job, AuditEvent):
            model.objects.all().delete()
        return failed(4), record()

    def check(given, outcomes):
        ids, event = given
        while step(using="default", most=2) is not None:
            pass
        found = read(event)
        assert found.phase in ("stopped", "done")
        assert sum(epochs(ids)) == found.changed, outcomes
        assert found.phase == "done" or outcomes[1] is True, outcomes

    def stop(given):
        return bulk_verbs.stop(given[1].pk, by="bob")

    assert walk(prepare, lambda given: step(using="default", most=2), stop, check, stride=4) > 2


@pytest.mark.parametrize("verb", ["retry", "discard", "prune"])
def test_a_job_that_fails_after_the_preview_is_left_alone(verb):
    shown = failed(1)
    make_jobs(1)
    (lease,) = claim("q", worker="w")
    filters = {"queue": "q", "state": "failed"}
    seen = walking.preview(verb, filters, first=10, using="default")
    event = bulk_verbs.record(verb, filters, who=ANN, until_id=seen.until_id)
    fail(lease, error=ValueError("x"), retry=False)
    finish()
    assert state(lease.job_id) == "FAILED"
    assert (read(event).matched, read(event).changed, read(event).refused) == (1, 1, 0)
    assert shown[0] not in Job.objects.dead().values_list("pk", flat=True)


def test_a_job_that_does_not_match_any_more_is_left_alone_and_not_counted():
    mine, other = failed(2)
    event = record(queue="q", state="failed")
    assert retry(mine)
    ack(claim("q", worker="w")[0])
    finish()
    assert [state(mine), state(other)] == ["DONE", "READY"]
    found = read(event)
    assert (found.matched, found.changed, found.refused) == (2, 1, 0)


def test_a_job_that_changes_between_the_look_and_the_write_is_counted_as_not_changed(monkeypatch):
    mine, other = failed(2)
    event = record()
    real = bulk_steps.next_ids

    def changed_meanwhile(*args, **options):
        found = real(*args, **options)
        if state(mine) == "FAILED":
            assert retry(mine)
            # It fails again before the chunk has its row.
            fail(claim("q", worker="w")[0], error=ValueError("x"), retry=False)
        return found

    monkeypatch.setattr(bulk_steps, "next_ids", changed_meanwhile)
    finish()
    assert epochs([mine, other]) == [1, 1]
    assert (read(event).changed, read(event).refused) == (1, 1)


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks")
@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_a_job_that_another_transaction_has_locked_holds_the_chunk_up(verb):
    ids = failed(3)
    event = record(verb)
    with holding(lambda: list(Job.objects.filter(pk=ids[1]).select_for_update())):
        assert isinstance(step(using="default").error, DatabaseBusy)
        assert (read(event).changed, read(event).phase) == (0, "waiting")
        assert [state(job_id) for job_id in ids] == ["FAILED"] * 3
    finish()
    assert (read(event).changed, read(event).refused) == (3, 0)


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks")
def test_prune_passes_over_a_job_that_another_transaction_has_locked_and_deletes_it_afterwards():
    """The housekeeping of a worker waits for no row: meanwhile it could reap nothing."""
    ids = failed(4)
    event = record("prune")
    with holding(lambda: list(Job.objects.filter(pk=ids[1]).select_for_update())):
        for looks in (1, 2):
            AuditEvent.objects.filter(pk=event.pk).update(due_at=UtcNowPlus(-1))
            done = step(using="default", most=3)
            assert (done.error, done.phase, done.changed, done.more) == (None, "running", 3 - looks, False)
        assert list(Job.objects.values_list("pk", flat=True)) == [ids[1]]
        assert (read(event).changed, read(event).refused) == (3, 0)
    finish()
    assert not Job.objects.exists()
    assert (read(event).changed, read(event).refused, read(event).phase) == (4, 0, "done")


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer at a time: it has no locks of rows")
def test_one_whose_row_a_frozen_process_has_locked_keeps_back_no_other():
    ids = failed(4)
    first = record(job_ids=str(ids[0]))
    second = record(job_ids=str(ids[1]))
    with holding(lambda: list(AuditEvent.objects.filter(pk=first.pk).select_for_update())):
        assert step(using="default").run_id == second.pk
        assert step(using="default") is None
    assert step(using="default").run_id == first.pk
    one, other = (redrive(job_ids=[job_id]) for job_id in ids[2:])
    with holding(lambda: list(Redrive.objects.filter(pk=one.id).select_for_update())):
        assert redrive_step(using="default").run_id == other.id
    assert redrive_step(using="default").run_id == one.id
