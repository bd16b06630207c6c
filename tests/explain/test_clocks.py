"""clock_skew: explain reports, as the last reason, hosts whose workers store a wrong clock with their heartbeats."""

import signal

import pytest
from django.utils import translation

from jobqueue.explain import explain_backlog, explain_job, explain_queue
from jobqueue.models import Worker
from tests.app import tasks
from tests.explain.helpers import checked, codes, named
from tests.factories import claim_one, make_job
from tests.marks import committed
from tests.patience import wait_until
from tests.process.conftest import start  # noqa: F401
from tests.process.harness import SHORT


@committed
@pytest.mark.parametrize("offset", [-90, 90])
def test_a_worker_with_a_wrong_clock_is_told_last(start, gate, offset):  # noqa: F811
    group = start("runworker", *SHORT, "--concurrency", 1, JOBQUEUE_TEST_CLOCK_OFFSET=str(offset))
    _, waiting = (tasks.gated.enqueue(str(gate)).id for _ in range(2))
    wait_until(lambda: Worker.objects.filter(clock_ahead_seconds__isnull=False).exists(), what="a heartbeat")
    for explain in (lambda: explain_job(waiting), lambda: explain_queue("default"), explain_backlog):
        # Once a second the busy worker claims the waiting job and gives it back. Meanwhile explain says that it runs.
        found = wait_until(lambda: told_last(explain()), what="clock_skew as the last reason")  # noqa: B023
        one = named(found, "clock_skew")
        assert abs(one.evidence["host_ahead_seconds"] - offset) < 5
        assert one.evidence["workers"][0]["name"] == Worker.objects.get().name
        assert ("ahead of" if offset > 0 else "behind") in one.text
    group.signal_all(signal.SIGKILL)


def told_last(found):
    """What explain has found, if its last reason is the clock."""
    return found if codes(checked(found))[-1] == "clock_skew" else None


@pytest.fixture
def gate(tmp_path):
    """A file that never appears."""
    return tmp_path / "gate"


@committed
def test_a_worker_with_the_right_clock_is_not_told(start, gate):  # noqa: F811
    group = start("runworker", *SHORT, "--concurrency", 1)
    waiting = [tasks.gated.enqueue(str(gate)).id for _ in range(2)][1]
    wait_until(lambda: Worker.objects.filter(clock_ahead_seconds__isnull=False).exists(), what="a heartbeat")
    assert abs(Worker.objects.get().clock_ahead_seconds) < 1
    for found in (explain_job(waiting), explain_queue("default"), explain_backlog()):
        assert "clock_skew" not in codes(found)
    group.signal_all(signal.SIGKILL)


@pytest.mark.django_db
def test_the_worst_host_comes_first_and_hosts_are_counted_once(worker):
    worker("a", host="one", clock_ahead_seconds=3.0)
    worker("b", host="one", clock_ahead_seconds=3.1)
    worker("c", host="two", clock_ahead_seconds=-600.0)
    worker("d", host="three", clock_ahead_seconds=0.9)
    worker("e", host="four")
    job_id = make_job()
    one = named(checked(explain_job(job_id)), "clock_skew")
    assert (one.evidence["host"], one.evidence["host_ahead_seconds"]) == ("two", -600.0)
    assert [each["name"] for each in one.evidence["workers"]] == ["c", "b", "a"]
    assert "10m 0s behind" in one.text
    assert "Hosts like it: 2." in one.text
    with translation.override("ko"):
        assert "느립니다" in named(explain_job(job_id), "clock_skew").text


@pytest.mark.django_db
def test_a_job_that_runs_has_no_such_reason(worker):
    worker("w", clock_ahead_seconds=600.0)
    job_id = make_job()
    claim_one(worker="w")
    assert codes(explain_job(job_id)) == ["running"]
