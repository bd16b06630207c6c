"""What jobs that run wait for, told by the stacks of real workers: an outside service, a connection, or nothing."""

import json
import os
import signal
import socket
from contextlib import closing, contextmanager

import pytest
from django.db import connection

from jobqueue.db.clock import UtcNowPlus
from jobqueue.explain import explain_backlog, explain_job, explain_queue, workers
from jobqueue.models import Worker
from tests.app import tasks
from tests.cli.helpers import read_json
from tests.explain.broken import end_sessions_of, ports_of
from tests.explain.helpers import checked, codes, first, named
from tests.factories import job, set_columns
from tests.marks import committed, on_a_wire
from tests.patience import patient, wait_until
from tests.process.conftest import account, gate, start  # noqa: F401
from tests.process.harness import LONG, kill_sessions
from tests.settings import VENDOR

pytestmark = committed
WAITS = {"connection", "outside_service", "hanging"}
SECRET = "4f9c-the-card-number"


@pytest.fixture
def group(start):  # noqa: F811
    """group(*options): a worker that ends with the test."""

    def run(*options, **environment):
        return start("runworker", *LONG, *options, **environment)

    return run


@pytest.fixture
def silence():
    """The address of a service that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield f"http://127.0.0.1:{server.getsockname()[1]}/{SECRET}"


def asked(*words):
    """The codes that `jobs explain` prints."""
    return [one["code"] for one in read_json("explain", *map(str, words))["reasons"]]


def runs(job_id):
    wait_until(lambda: job(job_id).locked_by, what="the claim")


def ended(*groups):
    for one in groups:
        one.signal_all(signal.SIGKILL)
    if VENDOR != "sqlite":
        # A server does not notice that nobody waits for a statement any more.
        kill_sessions()


def test_a_job_that_waits_for_an_answer_over_http_is_told_with_its_line(group, silence):
    job_id = tasks.buys.enqueue(silence).id
    worker = group("--concurrency", 1)
    runs(job_id)
    wait_until(lambda: asked(job_id)[0] == "outside_service", what="two seconds of waiting")
    found = checked(explain_job(job_id))
    one = first(found, "outside_service")
    assert codes(found) == ["outside_service", "running"]
    assert one.evidence["jobs"] == [int(job_id)]
    assert one.evidence["service"] in ("urllib", "http")
    assert one.evidence["place"].startswith("tests/app/tasks.py:")
    assert one.evidence["place"].endswith(" buys")
    assert one.evidence["stack"][-1].startswith("socket.py:")
    assert one.evidence["seconds"] >= 2
    assert SECRET not in json.dumps(one.evidence) + one.text
    # Another job waits behind it, because the worker is busy with this one.
    waiting = tasks.add.enqueue(1, 2).id
    for found in (explain_job(waiting), explain_queue("default"), explain_backlog()):
        assert codes(checked(found))[:2] == ["outside_service", "workers_busy"]
        assert found[0].evidence["jobs"] == [int(job_id)]
    assert named(explain_backlog(), "outside_service").evidence["waiting_jobs"] == 1
    ended(worker)


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="the driver of a server that is there")
def test_a_job_that_waits_for_another_database_is_told(group):
    job_id = tasks.asks_another_database.enqueue(600).id
    worker = group()
    runs(job_id)
    wait_until(lambda: asked(job_id)[0] == "outside_service", what="two seconds of waiting")
    assert first(explain_job(job_id), "outside_service").evidence["service"] == "MySQLdb"
    ended(worker)


@on_a_wire
def test_a_statement_on_the_database_of_the_queue_is_no_outside_service(group):
    job_id = tasks.finishes_in_the_server.enqueue(600).id
    worker = group()
    runs(job_id)

    def stands():
        assert asked(job_id) == ["running"]
        places = (Worker.objects.get().stacks or {}).get("places", [])
        return [one for one in places if one["jobs"] and one["database"] == "default" and one["looks"] > 1]

    wait_until(stands, what="its statement")
    ended(worker)


def test_a_job_that_runs_for_far_longer_than_usual_and_does_not_move_hangs(group):
    job_id = tasks.sleep.enqueue(600).id
    worker = group()
    runs(job_id)
    assert asked(job_id) == ["running"], "it has not run for long"
    set_columns(job_id, locked_at=UtcNowPlus(-700))
    wait_until(lambda: asked(job_id) == ["hanging", "running"], what="two looks")
    one = first(checked(explain_job(job_id)), "hanging")
    assert one.evidence["seconds"] >= 700
    assert one.evidence["place"].endswith(" sleep")
    assert one.evidence["looks"] >= 2
    assert one.evidence["usual_seconds"] is None
    assert "same at each look" in one.text
    assert asked() == ["hanging", "running"]
    assert asked("--queue", "default") == ["hanging", "running"]
    ended(worker)


def test_jobs_of_a_process_that_executes_no_python_code_hang(group, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    job_id = tasks.hold_the_gil.enqueue(str(tmp_path / "fifo")).id
    worker = group(JOBQUEUE_TEST_ANSWER_SECONDS="600")
    runs(job_id)
    set_columns(job_id, locked_at=UtcNowPlus(-700))
    wait_until(lambda: asked(job_id) == ["hanging", "running"], what="no answer of the process")
    one = first(checked(explain_job(job_id)), "hanging")
    assert (one.evidence["answered"], one.evidence["stack"]) == (False, [])
    ended(worker)


@on_a_wire
def test_a_worker_whose_process_gets_no_session_any_more_is_told_with_the_error(group, account, gate):  # noqa: F811
    running = tasks.gated.using(priority=9).enqueue(str(gate)).id
    worker = group("--concurrency", 2, **account.environment())
    runs(running)
    pid = Worker.objects.get().pid
    wait_until(lambda: account.sessions() >= 4 and ports_of(pid), what="its sessions")
    if VENDOR == "postgres":
        account.set_limit(1)
    else:
        # These servers do not count sessions that were there before a limit.
        account.set_password("changed")
    assert end_sessions_of(pid)
    waiting = tasks.add.enqueue(1, 2).id
    wait_until(lambda: asked(waiting)[0] == "connection", what="what the process says")
    for found in (explain_job(waiting), explain_queue("default"), explain_backlog()):
        one = first(checked(found), "connection")
        assert one.evidence["kind"] == "refused"
        assert "claim" in one.evidence["work"]
    account.set_limit(None)
    account.set_password(account.password)
    gate.touch()
    wait_until(lambda: {job(one).status for one in (running, waiting)} == {2}, what="the end of all jobs")
    assert not WAITS & {one.code for one in explain_backlog()}
    ended(worker)


@pytest.mark.skipif(VENDOR != "postgres", reason="the pool of psycopg")
def test_jobs_that_wait_for_a_connection_of_a_pool_are_told(group):
    pytest.importorskip("psycopg_pool")
    ids = [tasks.uses_the_database.enqueue(600).id for _ in range(8)]
    worker = group("--concurrency", 8, JOBQUEUE_TEST_POOL="6")
    wait_until(lambda: all(job(one).locked_by for one in ids), what="all claims")
    wait_until(lambda: "connection" in asked(), what="the wait")
    one = named(checked(explain_backlog()), "connection")
    assert one.evidence["kind"] == "pool"
    assert one.evidence["database"] == "default"
    assert set(one.evidence["jobs"]) < set(map(int, ids))
    assert "psycopg_pool/pool.py" in " ".join(one.evidence["stack"])
    ended(worker)


@contextmanager
def all_sessions_taken():
    """The server allows no more sessions than there are."""
    name, others = connection.settings_dict["NAME"], []
    with connection.cursor() as cursor:
        if VENDOR == "postgres":
            cursor.execute(f'ALTER DATABASE "{name}" CONNECTION LIMIT 1')
        else:
            # MariaDB allows ten at least.
            others = [connection.copy() for _ in range(11)]
            for other in others:
                other.ensure_connection()
            cursor.execute("SELECT @@GLOBAL.max_connections")
            (before,) = cursor.fetchone()
            cursor.execute("SET GLOBAL max_connections = 10")
        try:
            yield
        finally:
            cursor.execute(
                f'ALTER DATABASE "{name}" CONNECTION LIMIT -1'
                if VENDOR == "postgres"
                else f"SET GLOBAL max_connections = {before}"
            )
            for other in others:
                with closing(other):
                    pass


@on_a_wire
def test_a_server_without_a_free_session_is_told():
    with all_sessions_taken():
        one = named(checked(explain_backlog()), "connection")
        assert one.evidence["kind"] == "full"
        assert one.evidence["used"] >= one.evidence["limit"]
    assert "connection" not in codes(explain_backlog())


def test_healthy_jobs_have_none_of_these_reasons(group, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "WAIT_SECONDS", patient())
    go = tmp_path / "go"
    ids = [tasks.gated.enqueue(str(go)).id for _ in range(4)]
    waiting = tasks.add.enqueue(1, 2).id
    worker = group("--concurrency", 4)
    for job_id in ids:
        runs(job_id)
    for words in ([ids[0]], [waiting], ["--queue", "default"], []):
        assert not WAITS & set(asked(*words))
    assert Worker.objects.get().stacks["answered"], "it was asked"
    go.touch()
    wait_until(lambda: job(waiting).status == 2, what="the end")
    ended(worker)
