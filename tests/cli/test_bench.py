"""manage.py jobs bench: what it measures, and that nothing is left of it."""

import signal
import threading
from functools import partial

import pytest
from django.core.management import CommandError
from django.db import OperationalError, transaction

from jobqueue import enqueue, enqueue_many
from jobqueue.cli import bench
from jobqueue.cli.bench import Measured
from jobqueue.db.clock import UtcNowPlus
from jobqueue.locks import lease_lock
from jobqueue.models import Job, JobAttempt, LockRow
from jobqueue.transitions import ack, cancel, claim, fail
from jobqueue.transitions.claiming.candidates import BENCH_QUEUE
from jobqueue.worker.shared.queue_choice import parse
from tests.cli.helpers import printed, read_json, refused
from tests.cli.processes import start
from tests.factories import expire, make_in_state, row
from tests.marks import committed
from tests.patience import patient, wait_until

run, read = partial(printed, "bench"), partial(read_json, "bench")


def left():
    """How many jobs are in its queue."""
    return Job.objects.filter(queue=BENCH_QUEUE).count()


@pytest.mark.django_db
class TestOneRun:
    def test_each_verb_is_measured_one_by_one_and_in_batches_and_the_jobs_are_removed(self):
        found = read("--seconds", "400ms")
        assert found["complete"] is True
        kinds = [(one["verb"], one["batch"]) for one in found["measured"]]
        assert kinds == [(verb, batch) for batch in (1, 100) for verb in ("enqueue", "claim", "ack")]
        for one in found["measured"]:
            assert one["jobs"] > 0
            assert one["jobs_per_second"] > 0
            assert 0 < one["p50_seconds"] <= one["p99_seconds"]
        assert left() == 0

    def test_jobs_limits_each_round(self):
        found = read("--jobs", "150", "--seconds", "10m")["measured"]
        assert [(one["calls"], one["jobs"]) for one in found] == [(150, 150)] * 3 + [(2, 150)] * 3

    def test_text_is_a_table(self):
        head, *rows = run("--jobs", "1").splitlines()
        assert head.split() == ["verb", "batch", "calls", "jobs", "jobs/s", "p50", "p99"]
        assert [line.split()[:4] for line in rows[:3]] == [
            ["enqueue", "1", "1", "1"], ["claim", "1", "1", "1"], ["ack", "1", "1", "1"],
        ]  # fmt: skip
        assert rows[0].split()[-1].endswith("ms")
        assert run("--jobs", "1", "-v", "0") == ""

    def test_other_jobs_stay_as_they_are(self):
        ids = [make_in_state(name, queue=name) for name in ("READY", "PROCESSING", "DONE", "FAILED")]
        before = [row(job_id) for job_id in ids]
        run("--jobs", "120")
        assert [row(job_id) for job_id in ids] == before

    def test_a_list_of_allowed_queues_does_not_hinder_it(self, settings):
        settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": ["mail"]}}
        assert read("--jobs", "1")["complete"]

    def test_jobs_that_a_killed_bench_has_left_are_removed_in_every_state(self):
        enqueue_many(BENCH_QUEUE, range(6))
        held, done, failed, lost = claim(BENCH_QUEUE, 4, worker="w")
        ack(done)
        fail(failed, error="x", retry=False)
        expire(held, lost)
        cancel(Job.objects.filter(queue=BENCH_QUEUE, status=0).values_list("pk", flat=True)[0])
        other = enqueue("q", 1)
        found = read("--jobs", "1")
        assert found["left_over"] == 6
        assert (left(), JobAttempt.objects.count()) == (0, 0)
        assert Job.objects.get().pk == other
        enqueue(BENCH_QUEUE, 1)
        assert run("--jobs", "1").endswith("1 job of an earlier bench that was killed: removed\n")

    def test_more_jobs_are_left_than_one_portion_and_all_are_removed(self, monkeypatch):
        monkeypatch.setattr(bench, "PORTION", 10)
        enqueue_many(BENCH_QUEUE, range(35))
        assert read("--jobs", "25")["left_over"] == 35
        assert left() == 0

    def test_a_second_bench_is_refused_while_one_runs(self):
        job_id = enqueue(BENCH_QUEUE, 1)
        with lease_lock(BENCH_QUEUE, 60, 0), pytest.raises(CommandError, match="another bench runs") as error:
            run("--jobs", "1")
        assert error.value.returncode == 2
        assert Job.objects.get().pk == job_id

    def test_the_share_of_calls_is_counted_from_the_fastest(self):
        found = Measured("ack", 1, 100, [n / 1000 for n in range(100, 0, -1)])
        assert (found.percentile(0.5), found.percentile(0.99)) == (0.05, 0.099)
        assert found.jobs_per_second == pytest.approx(100 / 5.05)
        nothing = Measured("ack", 1)
        assert (nothing.percentile(0.5), nothing.jobs_per_second) == (None, 0.0)

    @pytest.mark.parametrize(
        "words", [("--seconds", "0"), ("--seconds", "11m"), ("--jobs", "0"), ("--jobs", "2000000")]
    )
    def test_wrong_values_are_refused(self, capsys, words):
        assert refused(capsys, "jobs", "bench", *words)


@committed
def test_inside_a_transaction_it_is_refused_and_nothing_is_written():
    job_id = enqueue(BENCH_QUEUE, 1)
    with transaction.atomic(), pytest.raises(CommandError, match="start it outside the block"):
        run("--jobs", "1")
    assert Job.objects.get().pk == job_id
    assert not LockRow.objects.exists()


@committed
def test_after_an_error_nothing_is_left(monkeypatch):
    def broken(leases):
        raise OperationalError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bench, "ack_many", broken)
        run("--seconds", "200ms", status=3)
    assert left() == 0
    assert read("--jobs", "1")["complete"]


@pytest.mark.django_db
class TestWorkers:
    def test_all_queues_are_all_but_that_of_the_bench(self):
        enqueue(BENCH_QUEUE, 1)
        enqueue("q", 1)
        for words in ([], ["*"], ["mail", "*:3"]):
            chosen = parse(words)
            assert [head.queue for head in chosen.heads("default")] == ["q"]
            assert BENCH_QUEUE not in chosen.names("default")
            assert not chosen.serves(BENCH_QUEUE)

    def test_a_worker_that_names_it_serves_it(self):
        enqueue(BENCH_QUEUE, 1)
        chosen = parse([f"{BENCH_QUEUE},*"])
        assert [head.queue for head in chosen.heads("default")] == [BENCH_QUEUE]
        assert chosen.serves(BENCH_QUEUE)


@committed
def test_a_bench_in_another_thread_is_not_hindered_by_signals():
    found = []
    thread = threading.Thread(target=lambda: found.append(run_in_thread()))
    thread.start()
    thread.join(patient())
    assert found[0].startswith("verb")


def run_in_thread():
    from django.db import connections

    try:
        return run("--jobs", "1")
    finally:
        connections.close_all()


@committed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_bench_that_is_interrupted_removes_its_jobs_and_tells_what_it_has_measured(number):
    with start("bench", "--seconds", "10m") as process:
        wait_until(lambda: left() > 20, what="jobs of the bench")
        process.send_signal(number)
        out, err = process.communicate(timeout=patient())
    assert (process.returncode, err.decode()) == (1, "it was interrupted\n")
    assert out.decode().splitlines()[1].split()[0] == "enqueue"
    assert left() == 0
    assert read("--jobs", "1")["left_over"] == 0


@committed
def test_the_next_bench_removes_what_a_killed_one_has_left():
    with start("bench", "--seconds", "10m") as process:
        wait_until(lambda: left() > 20, what="jobs of the bench")
        process.kill()
        process.wait(patient())
    assert left() > 20
    with pytest.raises(CommandError, match="was killed within the last 30 s"):
        run("--jobs", "1")
    LockRow.objects.update(expires_at=UtcNowPlus(-1))
    assert read("--jobs", "1")["left_over"] > 20
    assert left() == 0
