"""A database that refuses connections, at the start and in the middle: workers wait, nothing is lost or charged."""

import signal
import socket

import pytest

from jobqueue.models import Job, JobAttempt
from tests.app import tasks
from tests.factories import job, state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.harness import kill_sessions
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no server that could refuse a connection"),
]
LONG = ("--lease", "600s", "--heartbeat", "0.5s")  # so long that nothing is ever reaped


def run_into(refuse, admit, account, worker, evidence, gate):
    """A job that ends while nobody can log in, and jobs that wait meanwhile, are done when the door opens."""
    running = tasks.gated.using(priority=9).enqueue(str(gate)).id
    group = worker(*LONG, "--concurrency", 2, **account.environment())
    wait_until(lambda: evidence.read("start"), what="the first job")
    refuse()
    kill_sessions()
    waiting = [tasks.add.enqueue(n, 0).id for n in range(10)]
    gate.touch()
    group.prints("the database is unreachable")
    wait_until(lambda: evidence.read("effect"), what="the end of the running job")
    admit()
    wait_until(lambda: {state(i) for i in (running, *waiting)} == {"DONE"}, what="the end of all jobs")
    assert len(evidence.read("effect")) == 11, "a run was repeated"
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}
    assert not JobAttempt.objects.exists()
    assert job(running).fence == 1
    assert "Traceback" not in group.text()
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_password_that_is_changed_in_the_middle_costs_nothing_once_it_is_right_again(
    account, worker, evidence, tmp_path
):
    run_into(
        lambda: account.set_password("changed"),
        lambda: account.set_password(account.password),
        account,
        worker,
        evidence,
        tmp_path / "gate",
    )


def test_a_server_that_has_no_session_left_costs_nothing_once_it_has(account, worker, evidence, tmp_path):
    """The monitor, the loop and the job threads fight for one session; somebody is always refused."""
    run_into(
        lambda: account.set_limit(1),
        lambda: account.set_limit(None),
        account,
        worker,
        evidence,
        tmp_path / "gate",
    )


def test_a_wrong_password_at_the_start_exits_3(account, worker):
    group = worker("--drain", **account.environment(password="wrong"))
    assert group.wait() == 3
    group.prints("cannot be reached")
    assert "Traceback" not in group.text()


def test_a_server_that_is_down_at_the_start_exits_3(account, worker):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        group = worker("--drain", **account.environment(port=nobody.getsockname()[1]))
        assert group.wait() == 3
    group.prints("cannot be reached")
    assert "Traceback" not in group.text()
