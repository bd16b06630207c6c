"""Ended jobs are deleted when they are old or many enough, and nothing else is."""

import pytest
from django.db import DataError, IntegrityError, ProgrammingError, transaction

from jobqueue import enqueue, enqueue_many
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.dead_letters import redrive, stop
from jobqueue.maintenance import pruner
from jobqueue.maintenance.pruner import Pruner
from jobqueue.models import ArchivedJob, Job, JobAttempt
from jobqueue.models.job import UNFINISHED
from jobqueue.ordering.lanes import stuck_keys
from jobqueue.retention import deletion, history, windows
from jobqueue.retention.windows import Walk
from jobqueue.transitions import ack, fail, retry
from tests.factories import claim_one, make_in_state, make_job, set_columns, state
from tests.marks import finding
from tests.retention.helpers import DAY, ended, kept, left, prune

pytestmark = pytest.mark.django_db(transaction=True)


def test_jobs_older_than_their_state_allows_are_deleted_with_their_attempts(settings):
    kept(settings, done="7d", failed="30d", canceled="1d")
    young = [ended("DONE", 6), ended("FAILED", 29, attempts=2), ended("CANCELED", 0.9)]
    ended("DONE", 8, attempts=1), ended("FAILED", 31, attempts=2), ended("CANCELED", 1.1)
    assert prune() == 3
    assert left() == young
    assert {*JobAttempt.objects.values_list("job_id", flat=True)} == {young[1]}


def test_jobs_that_have_not_ended_stay_however_old_they_are(settings):
    kept(settings, done=0, failed=0, canceled=0)
    old = {"run_at": UtcNowPlus(-400 * DAY), "created_at": UtcNowPlus(-400 * DAY)}
    live = [make_in_state(name, **old) for name in ("PROCESSING", "READY")]
    live.append(make_job(gate=3, wait_reason="key k", **old))
    assert prune() == 0
    assert left() == live


def test_the_time_since_the_end_counts_and_not_since_the_enqueue(settings):
    kept(settings, done="7d")
    late = ended("DONE", 1, due_days=30)
    ended("DONE", 8, due_days=30)
    assert prune() == 1
    assert left() == [late]


def test_a_job_that_was_canceled_before_it_was_due_is_deleted_in_time(settings):
    kept(settings, canceled="7d")
    young = ended("CANCELED", 6, due_days=-30)
    ended("CANCELED", 8, due_days=-30)
    assert prune() == 1
    assert left() == [young]


def test_a_job_that_plain_sql_ended_without_a_time_goes_by_its_last_change(settings):
    kept(settings, done="7d")
    young, old = ended("DONE", 9), ended("DONE", 9)
    set_columns(young, finished_at=None, updated_at=UtcNowPlus(-6 * DAY))
    set_columns(old, finished_at=None, updated_at=UtcNowPlus(-8 * DAY))
    assert prune() == 1
    assert left() == [young]


def test_all_priorities_queues_and_gates_are_looked_at(settings):
    kept(settings, done="7d", failed="7d")
    for queue in ("a", "b"):
        for name in ("DONE", "FAILED"):
            for priority in (-5, 0, 5):
                for gate in (0, 3):
                    ended(name, 8, queue, priority=priority, gate=gate)
    stays = ended("DONE", 6, "a", priority=5)
    assert prune() == 24
    assert left() == [stays]


def test_windows_and_batches_of_any_size_delete_the_same_jobs(settings, monkeypatch):
    monkeypatch.setattr(windows, "SIZE", 2)
    kept(settings, done="7d")
    jobs = {ended("DONE", days, due_days=due): days for due in (12, 11, 10) for days in (8, 1, 9, 2, 10, 3)}
    assert prune(batch=2) == 9
    assert left() == [job_id for job_id, days in jobs.items() if days < 7]


def test_jobs_that_fell_due_in_the_same_instant_are_all_looked_at(settings, monkeypatch):
    monkeypatch.setattr(windows, "SIZE", 2)
    kept(settings, done="7d")
    jobs = enqueue_many("q", range(9))
    due = Job.objects.filter(pk__in=jobs)
    due.update(status=Job.Status.DONE, run_at=UtcNowPlus(-20 * DAY), finished_at=UtcNowPlus(-8 * DAY))
    young = jobs[1::2]
    due.filter(pk__in=young).update(finished_at=UtcNowPlus(-DAY))
    assert prune(batch=2) == 5
    assert left() == young


class TestTheNumber:
    def test_the_newest_are_kept_over_all_priorities(self, settings):
        kept(settings, done={"KEEP": 3})
        jobs = [ended("DONE", days, priority=days % 2) for days in (7, 6, 5, 4, 3, 2, 1)]
        ended("FAILED", 80)
        assert prune() == 4
        assert left()[:3] == jobs[-3:]

    def test_each_queue_keeps_its_own(self, settings):
        kept(settings, done={"KEEP": 1})
        for queue in ("a", "b"):
            ended("DONE", 2, queue)
        newest = [ended("DONE", 1, queue) for queue in ("a", "b")]
        assert prune() == 2
        assert left() == newest

    def test_fewer_than_the_number_stay(self, settings):
        kept(settings, done={"KEEP": 3})
        jobs = [ended("DONE", days) for days in (300, 200, 100)]
        assert prune() == 0
        assert left() == jobs

    def test_an_age_bounds_them_too(self, settings):
        kept(settings, done={"AGE": "7d", "KEEP": 3})
        jobs = [ended("DONE", days) for days in (9, 6, 5, 4, 3)]
        assert prune() == 2
        assert left() == jobs[2:]
        kept(settings, done={"AGE": "1d", "KEEP": 3})
        assert prune() == 3


class TestDedupeKeys:
    def test_a_job_keeps_its_key_for_as_long_as_it_was_promised(self, settings):
        kept(settings, done="1h", DEDUPE_SECONDS=2 * DAY)
        holds = ended("DONE", 1, dedupe_key=b"held")
        ended("DONE", 3, dedupe_key=b"over")
        ended("DONE", 1)
        assert prune() == 2
        assert left() == [holds]
        assert enqueue("q", 1, dedupe_key="held") == holds

    def test_a_key_that_is_held_until_it_is_pruned_is_free_then(self, settings):
        kept(settings, done="7d", DEDUPE_SECONDS=None)
        first = ended("DONE", 8, dedupe_key=b"k")
        assert enqueue("q", 1, dedupe_key="k") == first
        assert prune() == 1
        assert enqueue("q", 1, dedupe_key="k") != first

    @finding("S-A5")
    @pytest.mark.parametrize("dedupe_seconds", [DAY, None])
    def test_a_job_stays_until_the_window_of_its_key_has_ended(self, settings, dedupe_seconds):
        kept(settings, done={"AGE": "7d", "KEEP": 1}, DEDUPE_SECONDS=dedupe_seconds)
        window = {"unique_seconds": 30 * DAY, "dedupe_key": b"k"}
        stays = ended("DONE", 28, created_at=UtcNowPlus(-29 * DAY), **window)
        over = ended("DONE", 28, created_at=UtcNowPlus(-31 * DAY), **window | {"dedupe_key": b"over"})
        short = ended("DONE", 8, created_at=UtcNowPlus(-9 * DAY), unique_seconds=60, dedupe_key=b"short")
        newest = ended("DONE", 0.5)
        assert prune() == 2
        assert left() == [stays, newest]
        assert {over, short}.isdisjoint(left())

    def test_a_job_that_held_its_key_until_its_end_only_may_be_deleted(self, settings):
        kept(settings, done="1h", DEDUPE_SECONDS=2 * DAY)
        ended("DONE", 1, dedupe_key=b"k", unique_mode=UNFINISHED, unique_seconds=30 * DAY)
        ended("DONE", 1, dedupe_key=b"other", unique_mode=UNFINISHED)
        assert prune() == 2

    def test_a_window_beyond_all_dates_does_not_stop_the_deletion_of_others(self, settings):
        kept(settings, done="1h")
        stays = ended("DONE", 1, dedupe_key=b"k", unique_seconds=1e200)
        ended("DONE", 1)
        assert prune() == 1
        assert left() == [stays]


class TestOrderingKeys:
    def test_a_dead_letter_that_blocks_its_key_stays(self, settings):
        kept(settings, failed="7d")
        first, second = enqueue_many("q", range(2), ordering_key="k")
        lease = claim_one()
        set_columns(lease.job_id, max_attempts=1)
        fail(lease, error="boom", retry=False)
        set_columns(first, finished_at=UtcNowPlus(-8 * DAY), run_at=UtcNowPlus(-8 * DAY))
        assert prune() == 0
        (key,) = stuck_keys(using="default")
        assert (key.state, key.first_id) == ("failed", first)
        assert retry(first)
        ack(claim_one())
        ack(claim_one())
        for job_id in (first, second):
            set_columns(job_id, finished_at=UtcNowPlus(-8 * DAY), run_at=UtcNowPlus(-8 * DAY))
        assert prune() == 2

    def test_a_dead_letter_that_others_do_not_wait_for_goes(self, settings):
        kept(settings, failed="7d", ON_KEY_FAILURE="skip")
        first, second = enqueue_many("q", range(2), ordering_key="k")
        lease = claim_one()
        set_columns(lease.job_id, max_attempts=1)
        fail(lease, error="boom", retry=False)
        set_columns(first, finished_at=UtcNowPlus(-8 * DAY), run_at=UtcNowPlus(-8 * DAY))
        assert prune() == 1
        assert claim_one().job_id == second


def steps(own):
    """Take all steps of one walk; the number of deleted jobs."""
    deleted = 0
    while True:
        deleted += own.run_once(load(), using="default")["jobs_deleted"]
        if not own.more:
            return deleted


class TestTheChore:
    def test_a_step_deletes_one_batch_and_rests_several_times_as_long_as_it_took(self, settings):
        one_writer = vendor("default").single_writer
        least = pruner.SINGLE_WRITER_REST_SECONDS_MIN if one_writer else pruner.REST_SECONDS_MIN
        kept(settings, done="7d")
        for _ in range(5):
            ended("DONE", 8)
        own = Pruner(2)
        found = []
        while True:
            found.append(own.run_once(load(), using="default")["jobs_deleted"])
            if not own.more:
                break
            assert least <= own.pause_seconds < 3.0
        assert [number for number in found if number] == [2, 2, 1]
        assert own.pause_seconds == pruner.INTERVAL_SECONDS

    def test_one_worker_prunes_for_all(self, settings):
        kept(settings, done="7d")
        first, second = Pruner(1), Pruner(1)
        ended("DONE", 8), ended("DONE", 8)
        assert steps(first) == 2
        ended("DONE", 8)
        assert second.run_once(load(), using="default")["jobs_deleted"] == 0
        assert not second.more
        assert steps(first) == 1

    def test_jobs_that_stay_are_jumped_over_by_the_next_walk(self, settings, monkeypatch):
        monkeypatch.setattr(windows, "SIZE", 2)
        monkeypatch.setattr(windows, "STAYING_MAX", 2)
        kept(settings, done="7d")
        stay = [ended("DONE", 1, due_days=9) for _ in range(10)]
        ended("DONE", 8, due_days=8)
        places, found = {}, []
        for _ in range(5):
            walk = Walk.of(load()).chosen("default", places)
            found.append(sum(len(chosen.ended) for chosen in walk if chosen))
        # The first walk reads four of those that stay; each of the next ones the first two, and then two more.
        assert found == [0, 0, 0, 0, 1]
        assert left()[:-1] == stay

    def test_the_oldest_jobs_are_looked_at_first_by_every_walk(self, settings, monkeypatch):
        """However many come that stay, and are behind them."""
        monkeypatch.setattr(windows, "SIZE", 2)
        monkeypatch.setattr(windows, "STAYING_MAX", 2)
        kept(settings, done="1h")
        own = Pruner()
        for number in range(5):
            oldest = ended("DONE", 1, due_days=9)
            for key in range(7):
                ended("DONE", 0.5, due_days=2, dedupe_key=f"{number}-{key}".encode())
            steps(own)
            assert oldest not in left()

    def test_a_large_queue_does_not_delay_the_others(self, settings, monkeypatch):
        monkeypatch.setattr(windows, "SIZE", 2)
        monkeypatch.setattr(windows, "TURN", 2)
        kept(settings, done="1d")
        for _ in range(20):
            ended("DONE", 2, "large")
        ended("DONE", 2, "small")
        found = [chosen.queue for chosen in Walk.of(load()).chosen("default") if chosen and chosen.ended]
        assert found.index("small") == 2
        assert len(found) == 11

    def test_a_queue_that_cannot_be_looked_at_does_not_keep_the_others(self, settings, monkeypatch, caplog):
        kept(settings, done="1d")
        bad, good = ended("DONE", 2, "a"), ended("DONE", 2, "b")
        read = windows.next_window

        def fails(group, *arguments):
            if group.queue == "a":
                raise DataError("a row that cannot be read")
            return read(group, *arguments)

        monkeypatch.setattr(windows, "next_window", fails)
        with caplog.at_level("WARNING", "jobqueue.worker"):
            assert prune() == 1
        assert left() == [bad] != [good]
        assert "ended jobs of queue a cannot be looked at" in caplog.text

    def test_a_job_that_cannot_be_deleted_does_not_keep_the_others(self, settings, monkeypatch, caplog):
        kept(settings, done="1d")
        ids = [ended("DONE", 2) for _ in range(20)]
        delete = deletion._delete_rows

        def fails(job_ids, using):
            if ids[7] in job_ids:
                raise IntegrityError("a row of the project refers to it")
            delete(job_ids, using)

        monkeypatch.setattr(deletion, "_delete_rows", fails)
        own = Pruner(once=True)
        with caplog.at_level("INFO", "jobqueue.worker"):
            assert steps(own) == 19
        assert left() == [ids[7]]
        assert f"job {ids[7]} of queue q is not deleted" in caplog.text
        caplog.clear()
        assert steps(own) == 0
        assert "is not deleted" not in caplog.text, "it is not tried again in each walk"

    def test_an_account_that_may_not_delete_is_told_once_and_not_for_each_job(self, settings, monkeypatch):
        kept(settings, done="1d")
        jobs, tries = [ended("DONE", 2) for _ in range(20)], []

        def denied(job_ids, using):
            tries.append(job_ids)
            raise ProgrammingError("permission denied for table job_queue")

        monkeypatch.setattr(deletion, "_delete_rows", denied)
        with pytest.raises(ProgrammingError):
            prune()
        assert len(tries) == 1
        assert left() == jobs

    def test_dead_letters_of_a_redrive_under_way_stay(self, settings):
        kept(settings, failed="1d")
        old = ended("FAILED", 2)
        run = redrive(everything=True)
        assert prune() == 0
        assert stop(run.id)
        assert prune() == 1
        assert old not in left()

    def test_no_job_is_deleted_in_its_first_minute(self, settings):
        kept(settings, done=0)
        young = ended("DONE", 30 / DAY)
        ended("DONE", 90 / DAY)
        assert prune() == 1
        assert left() == [young]

    def test_attempts_without_a_job_are_deleted_in_time(self, settings, monkeypatch):
        monkeypatch.setattr(deletion, "SLICE", 2)
        known = ended("FAILED", 1, attempts=2)
        lost = [ended("FAILED", 1, attempts=1) for _ in range(3)]
        Job.objects.filter(pk__in=lost).delete()
        own = Pruner(once=True)
        found = 0
        for _ in range(20):
            found += own.run_once(load(), using="default")["attempts_deleted"]
        assert found == 3
        assert {*JobAttempt.objects.values_list("job_id", flat=True)} == {known}

    def test_nothing_is_deleted_if_everything_is_to_be_kept(self, settings):
        settings.JOBQUEUE = {"RETENTION": None}
        jobs = [ended(name, 4000) for name in ("DONE", "FAILED", "CANCELED")]
        assert prune() == 0
        assert left() == jobs


class TestTheArchive:
    def test_jobs_are_moved_with_their_attempts(self, settings):
        kept(settings, failed={"AGE": "7d", "ARCHIVE": True})
        moved = ended("FAILED", 8, attempts=2, dedupe_key=b"k", last_error="boom", cause="CODE", options={"a": 1})
        plain = ended("FAILED", 9)
        before = Job.objects.get(pk=moved)
        assert prune() == 2
        assert left() == []
        found = ArchivedJob.objects.get(pk=moved)
        own = ("failures", "archived_at")
        for field in ArchivedJob._meta.concrete_fields:
            if field.name not in own:
                assert getattr(found, field.name) == getattr(before, field.name), field.name
        assert [(one["attempt"], one["error"]) for one in found.failures] == [(1, "boom"), (2, "boom")]
        assert ArchivedJob.objects.get(pk=plain).failures is None
        assert not JobAttempt.objects.exists()

    def test_a_job_that_cannot_be_archived_is_not_deleted(self, settings, monkeypatch):
        kept(settings, done={"AGE": "7d", "ARCHIVE": True})
        job_id = ended("DONE", 8)

        def fails(ids, using):
            raise RuntimeError("no room")

        monkeypatch.setattr(history, "archive", fails)
        with pytest.raises(RuntimeError):
            prune()
        assert left() == [job_id]


def test_a_job_that_is_retried_between_the_look_and_the_deletion_stays(settings, monkeypatch):
    kept(settings, failed="7d")
    job_id = ended("FAILED", 8)
    delete = deletion.delete_jobs

    def late(chosen, status, **options):
        assert chosen
        assert retry(job_id)
        return delete(chosen, status, **options)

    monkeypatch.setattr(deletion, "delete_jobs", late)
    assert prune() == 0
    assert state(job_id) == "READY"


def test_a_job_that_ended_again_meanwhile_stays(settings, monkeypatch):
    kept(settings, failed="7d")
    job_id = ended("FAILED", 8)
    delete = deletion.delete_jobs

    def late(chosen, status, **options):
        set_columns(job_id, finished_at=UtcNowPlus(-1))
        return delete(chosen, status, **options)

    monkeypatch.setattr(deletion, "delete_jobs", late)
    assert prune() == 0
    assert left() == [job_id]


def test_pruning_in_a_transaction_of_the_caller_ends_with_it(settings):
    kept(settings, done="7d")
    job_id = ended("DONE", 8)
    with transaction.atomic():
        assert prune() == 1
        transaction.set_rollback(True)
    assert left() == [job_id]
