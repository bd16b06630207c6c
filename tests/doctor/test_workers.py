"""What the doctor says of workers, leases, foreign claimers and retries."""

import pytest

from jobqueue import enqueue, enqueue_many
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.doctor import Level, work
from jobqueue.flow import pause, set_limit
from jobqueue.models import Job
from jobqueue.transitions import claim, reap
from tests.doctor.helpers import add_worker, found, ids, the
from tests.factories import expire

pytestmark = pytest.mark.django_db


def test_no_worker_is_a_warning_and_an_error_as_soon_as_jobs_wait():
    assert the("no_worker").level is Level.WARNING
    enqueue("mail", 1)
    one = the("no_worker")
    assert (one.level, one.evidence["queues"]) == (Level.ERROR, ["mail"])
    assert one.fix.endswith("python manage.py runworker")
    add_worker()
    assert ids() == []


def test_a_worker_without_heartbeats_is_named_and_counts_as_none():
    add_worker("w1", heartbeat_at=UtcNowPlus(-600), host="web-3")
    assert ids() == ["no_worker", "worker_silent"]
    one = the("worker_silent")
    assert one.evidence["workers"][0]["name"] == "w1"
    assert "Worker w1 on web-3 has sent no heartbeat for 60" in one.text
    add_worker("w2")
    assert ids() == ["worker_silent"]


def test_a_worker_that_has_stopped_is_not_silent():
    add_worker("w1", heartbeat_at=UtcNowPlus(-600), stopped_at=UtcNow())
    add_worker("w2")
    assert ids() == []


def test_workers_of_several_versions_are_a_warning():
    add_worker("w1", version="1.0")
    add_worker("w2", version="1.1")
    add_worker("w3", version="1.1")
    one = the("worker_versions")
    assert (one.level, one.evidence) == (Level.WARNING, {"versions": {"1.0": 1, "1.1": 2}})


def test_a_queue_with_jobs_that_no_worker_serves_is_an_error():
    add_worker(queues="mail, -slow")
    enqueue("mail", 1)
    assert ids() == []
    enqueue("slow", 1)
    one = the("queue_unserved")
    assert (one.level, one.evidence) == (Level.ERROR, {"queues": ["slow"], "number": 1})
    assert "--queues=slow" in one.fix
    add_worker("w2", queues="*")
    assert ids() == []


def test_leases_that_nobody_has_ended_are_an_error_until_they_are_reaped():
    add_worker("w")
    enqueue_many("q", range(3))
    held = claim("q", 3, worker="w")
    assert ids() == []
    expire(*held)
    one = the("leases_lapsed")
    assert (one.level, one.evidence["number"], one.evidence["capped"]) == (Level.ERROR, 3, False)
    assert sorted(one.evidence["jobs"]) == sorted(lease.job_id for lease in held)
    reap()
    assert ids() == []


def test_a_lease_that_has_lapsed_a_moment_ago_is_left_to_the_reaper():
    add_worker("w")
    enqueue("q", 1)
    claim("q", worker="w")
    Job.objects.update(lock_until=UtcNowPlus(-2))
    assert ids() == []


def test_lapsed_leases_are_counted_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(work, "COUNT_MAX", 2)
    add_worker("w")
    enqueue_many("q", range(4))
    expire(*claim("q", 4, worker="w"))
    one = the("leases_lapsed")
    assert (one.evidence["number"], one.evidence["capped"]) == (2, True)
    assert "more than 2" in one.text


def test_a_short_lease_is_a_warning(settings):
    add_worker()
    settings.JOBQUEUE = {"LEASE_SECONDS": 4}
    one = the("lease_short")
    assert (one.level, one.evidence) == (Level.WARNING, {"lease_seconds": 4, "heartbeat_seconds": 1.0})


CLAIM = (
    "UPDATE job_queue SET status = 1, locked_by = %s, lock_token = %s, locked_at = updated_at, "
    "lock_until = '2090-01-01 00:00:00', fence = fence + 1 WHERE id = %s"
)


@pytest.fixture
def foreign_claim(sql):
    """Claim a job as a program does that knows only SQL."""

    def take(queue="mail", name="php-1"):
        job_id = enqueue(queue, 1)
        assert sql(CLAIM, [name, b"0123456789abcdef", job_id]) == 1
        return job_id

    return take


def test_a_claimer_of_a_limited_queue_that_is_no_worker_is_named(foreign_claim, settings):
    add_worker("w")
    job_id = foreign_claim()
    assert ids() == []
    settings.JOBQUEUE = {"QUEUES": {"mail": {"CONCURRENCY": 1}}}
    one = the("foreign_claimer")
    assert (one.level, one.evidence) == (Level.WARNING, {"queue": "mail", "claimers": {"php-1": [job_id]}})


@pytest.mark.parametrize("limit", ["rate", "pause"])
def test_so_it_is_with_a_limit_or_a_pause_that_an_operator_has_set(foreign_claim, limit):
    add_worker("w")
    foreign_claim()
    if limit == "rate":
        set_limit("mail", rate="10/s")
    else:
        pause("mail", reason="r")
    assert ids() == ["foreign_claimer"]


def test_limited_queues_that_were_not_looked_at_are_counted(foreign_claim, monkeypatch):
    add_worker("w")
    monkeypatch.setattr(work, "QUEUES_MAX", 1)
    for queue in ("a", "b", "c"):
        foreign_claim(queue)
        set_limit(queue, concurrency=1)
    one, rest = found()
    assert one.evidence["queue"] == "a"
    assert (rest.id, rest.evidence) == ("not_checked", {"check": "claimers", "queues": 3, "looked_at": 1})


def test_workers_and_jobs_that_run_alone_are_no_foreign_claimers(foreign_claim):
    add_worker("host:1:b/1.1")
    add_worker("stopped", stopped_at=UtcNow())
    set_limit("mail", concurrency=9)
    for name in ("host:1:b/1.1", "host:1:b/9.1", "stopped", "host:77:alone"):
        foreign_claim(name=name)
    assert ids() == []
    foreign_claim(name="host:2:b/1.1")
    (one,) = found()
    assert [*one.evidence["claimers"]] == ["host:2:b/1.1"]


def test_a_task_whose_attempts_make_many_calls_has_nested_retries():
    counts = {"dependency": "", "task": "app.tasks.charge", "first_runs": 30, "retries": 10, "calls": 200}
    add_worker("w1", retries=[counts, {**counts, "task": "app.tasks.plain", "calls": 40}])
    add_worker("w2", retries=["of another version", {"task": 5}])
    one = the("retries_multiply")
    assert one.evidence == {"task": "app.tasks.charge", "attempts": 40, "calls": 200}
    assert "5.0 calls" in one.text


def test_tasks_with_nested_retries_that_are_not_named_are_counted(monkeypatch):
    monkeypatch.setattr(work, "SHOWN", 1)
    counts = {"dependency": "", "first_runs": 30, "retries": 10, "calls": 200}
    add_worker("w1", retries=[{**counts, "task": f"app.tasks.charge{number}"} for number in range(3)])
    one, rest = found()
    assert one.evidence["task"] == "app.tasks.charge0"
    assert rest.evidence == {"more": 2}
