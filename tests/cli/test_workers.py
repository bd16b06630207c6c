"""manage.py jobs workers: which run, since when they are silent, and what they hold."""

from datetime import timedelta
from functools import partial

import pytest

from jobqueue import enqueue_many
from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance import worker_rows
from jobqueue.maintenance.worker_rows import register, retire, retire_silent
from jobqueue.models import Job, Worker
from jobqueue.transitions import ack, claim
from tests.cli.helpers import printed, read_json, refused
from tests.factories import now

pytestmark = pytest.mark.django_db

run, read = partial(printed, "workers"), partial(read_json, "workers")


def worker(name, boot_id="b", supervisor_pid=7, **columns):
    """The name of a worker that runs."""
    register(name, supervisor_pid=supervisor_pid, boot_id=boot_id, queues="*", concurrency=4, using="default")
    Worker.objects.filter(name=name).update(**{"host": "web1", "pid": 70, **columns})
    return name


def silence(name):
    """Let the last heartbeat of a worker be too old."""
    Worker.objects.filter(name=name).update(heartbeat_at=UtcNowPlus(-load().worker_silent_seconds - 60))


def hold(name, count=1, queue="q"):
    """The leases that a worker has claimed now."""
    enqueue_many(queue, range(count))
    return claim(queue, count, worker=name)


def test_without_workers_it_says_so():
    assert run() == "no worker runs; --all lists those that have stopped\n"
    assert run("--all") == "no worker has run\n"
    assert read() == {"workers": [], "complete": True}


def test_it_lists_the_workers_that_run_below_their_supervisor():
    first, second = worker("w:b/1.0"), worker("w:b/2.0")
    hold(second, 3)
    Job.objects.filter(locked_by=second).update(locked_at=UtcNowPlus(-90))
    Worker.objects.update(heartbeat_at=UtcNowPlus(-5))
    head, group, *rows = run().splitlines()
    assert head.split() == ["worker", "pid", "state", "jobs", "oldest", "heartbeat", "threads", "queues"]
    assert group == "supervisor 7 on web1, boot id b"
    assert [row.split()[:4] for row in rows] == [[first, "70", "running", "0"], [second, "70", "running", "3"]]
    assert rows[0].split()[4] == "-"
    assert rows[1].split()[4] == "1m"
    assert rows[1].split()[-2:] == ["4", "*"]


def test_running_workers_come_before_silent_ones_and_commands_stay_together():
    silence(worker("a:x/1.0", "x"))
    worker("b:y/10.0", "y")
    silence(worker("b:y/9.0", "y"))
    worker("b:y/2.0", "y")
    found = [(one["name"], one["state"]) for one in read()["workers"]]
    assert found == [
        ("b:y/2.0", "running"), ("b:y/10.0", "running"), ("b:y/9.0", "silent"), ("a:x/1.0", "silent"),
    ]  # fmt: skip
    assert [line for line in run().splitlines() if line.startswith("supervisor")] == [
        "supervisor 7 on web1, boot id y",
        "supervisor 7 on web1, boot id x",
    ]


def test_a_worker_that_announced_rare_heartbeats_is_silent_later():
    worker("rare", heartbeat_seconds=10 * load().worker_silent_seconds)
    silence("rare")
    assert read()["workers"][0]["state"] == "running"


def test_those_that_have_stopped_are_listed_with_all_and_why():
    worker("gone")
    retire("gone", "max-jobs reached", using="default")
    silence(worker("killed"))
    assert retire_silent(load().worker_silent_seconds, using="default") == 1
    worker("runs")
    assert [one["name"] for one in read()["workers"]] == ["runs"]
    assert [one["name"] for one in read("--all")["workers"]] == ["runs", "gone", "killed"]
    said = run("--all")
    assert "stopped: max-jobs reached" in said
    assert "stopped: silent: no heartbeat" in said


def test_jobs_shows_what_each_holds_until_it_has_ended():
    worker("w")
    first, second = hold("w", 2)
    ack(first)
    until = f"{second.lock_until:%Y-%m-%d %H:%M:%S}"
    (line,) = [line for line in run("--jobs").splitlines() if line.startswith("    #")]
    assert line == f"    #{second.job_id}  q  (handler)  since {second.locked_at:%Y-%m-%d %H:%M:%S}  until {until}"
    (found,) = read("--jobs")["workers"]
    (held,) = found["held"]
    assert (found["jobs"], held["id"], held["queue"], held["task"]) == (1, second.job_id, "q", None)
    assert "held" not in read()["workers"][0]


def test_json_has_stable_names():
    begun = now()
    worker("w")
    hold("w")
    (found,) = read()["workers"]
    age = found.pop("heartbeat_age_seconds"), found.pop("oldest_job_age_seconds")
    assert all(0 <= seconds <= (now() - begun).total_seconds() for seconds in age)
    assert found.pop("started_at")
    assert found.pop("heartbeat_at")
    assert found.pop("version")
    assert found == {
        "name": "w", "host": "web1", "pid": 70, "supervisor_pid": 7, "boot_id": "b", "queues": "*", "concurrency": 4,
        "state": "running", "stop_reason": "", "stopped_at": None, "jobs": 1, "jobs_capped": False,
    }  # fmt: skip


def test_no_more_jobs_of_a_worker_are_read_than_a_limit(monkeypatch):
    worker_rows._leases.cache_clear()
    monkeypatch.setattr(worker_rows, "LEASES_MAX", 2)
    try:
        worker("w")
        hold("w", 5)
        (found,) = read("--jobs")["workers"]
        assert (found["jobs"], found["jobs_capped"], len(found["held"])) == (2, True, 2)
        assert " 2+ " in run()
    finally:
        worker_rows._leases.cache_clear()


def test_no_more_workers_are_shown_than_the_limit():
    for number in range(4):
        worker(f"w{number}", heartbeat_at=now() - timedelta(seconds=number))
    assert len(read("--limit", "3")["workers"]) == 3
    assert read("--limit", "3")["complete"] is False
    assert run("--limit", "3").endswith("there are more; pass a larger --limit\n")
    assert "there are more" not in run("--limit", "4")
    retire("w3", "stop", using="default")
    assert len(read("--limit", "3", "--all")["workers"]) == 4
    assert read("--limit", "3")["complete"] is True


def test_odd_names_cannot_forge_a_line():
    worker("w\nsupervisor 1", host="h\x1b[2J")
    assert len(run().splitlines()) == 3
    assert "\x1b" not in run()


def test_verbosity_0_prints_nothing():
    worker("w")
    assert run("-v", "0") == ""


@pytest.mark.parametrize("words", [("--watch", "0"), ("--watch", "soon"), ("--limit", "0"), ("--limit", "1001")])
def test_wrong_values_are_refused(capsys, words):
    assert refused(capsys, "jobs", "workers", *words)
