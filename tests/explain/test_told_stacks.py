"""What is concluded from the stacks that workers have told, and how much it costs; with answers made by hand."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from jobqueue.db.clock import UtcNowPlus
from jobqueue.explain import explain_backlog, explain_job, explain_queue
from jobqueue.explain.stacks import Line, Standing, wait_of
from jobqueue.models import JobStat, Worker
from jobqueue.models.stat import EPOCH
from tests.explain.helpers import checked, codes, first, named
from tests.factories import claim_one, make_job, set_columns
from tests.marks import finding

pytestmark = pytest.mark.django_db
OWN = "app/tasks.py:7 charge"
RUN = "jobqueue/worker/run/perform.py:103 perform"
HTTP = ["requests/api.py:59 request", "urllib3/connection.py:1 send", "http/client.py:286 begin", "socket.py:718 read"]
CURSOR = "django/db/backends/utils.py:105 _execute"
CONNECT = ["django/db/backends/base/base.py:256 connect", "MySQLdb/connections.py:195 __init__"]
GETCONN = ["psycopg_pool/pool.py:171 getconn", "psycopg_pool/pool.py:200 wait", "threading.py:331 wait"]


def standing(*lines, database=None, looks=2):
    return Standing("w", {}, 1, [Line.of(line) for line in (RUN, *lines)], database, looks, 0.5)


def of_own_lock(*lines, database=None):
    return pytest.param(lines, database, ("lock", "jobqueue.locks"), marks=finding("M-F1"))


@pytest.mark.parametrize(
    ("lines", "database", "wait"),
    [
        ([OWN, *HTTP], None, ("service", "requests")),
        ([OWN, "socket.py:1 create_connection"], None, ("service", "socket")),
        ([OWN, "ssl.py:1 read"], None, ("service", "ssl")),
        ([OWN, "grpc/_channel.py:1 _blocking", "threading.py:331 wait"], None, ("service", "grpc")),
        ([OWN, "asyncio/streams.py:1 readline"], None, ("service", "asyncio")),
        ([OWN, CURSOR, "MySQLdb/cursors.py:1 execute"], "reports", ("service", "database reports")),
        ([OWN, "pymongo/pool.py:1 receive"], None, ("service", "pymongo")),
        ([OWN, "psycopg/connection.py:1 wait"], None, ("service", "psycopg")),
        ([OWN, *CONNECT], "default", ("connect", "default")),
        ([OWN, CONNECT[0], "django/db/backends/postgresql/base.py:1 get_new_connection", *GETCONN], "default",
         ("pool", "default")),
        ([OWN, "sqlalchemy/pool/impl.py:1 _do_get", "queue.py:1 get", "threading.py:1 wait"], None,
         ("pool", "sqlalchemy")),
        ([OWN, CURSOR, "MySQLdb/cursors.py:1 execute"], "default", None),
        ([OWN, CURSOR], "default", None),
        of_own_lock(OWN, "jobqueue/locks/lease.py:1 _wait", "threading.py:331 wait"),
        of_own_lock(
            OWN, "contextlib.py:1 __enter__", "jobqueue/locks/mutex_rows.py:1 lock", "jobqueue/db/mysql/locks.py:1 get",
            CURSOR, "MySQLdb/cursors.py:1 execute", database="default",
        ),
        (["jobqueue/locks/lock.py:1 inner", OWN], None, None),
        ([OWN], None, None),
        ([OWN, "threading.py:331 wait"], None, None),
        ([OWN, "subprocess.py:1 communicate", "selectors.py:1 select"], None, None),
        (["app/socket_helpers.py:7 compute"], None, None),
        (["http.py:7 compute"], None, None),
        (["<generated>: -"], None, None),
        (["psycopg_pool/sched.py:1 run", "threading.py:1 wait"], None, None),
    ],
)  # fmt: skip
def test_what_a_stack_waits_for(lines, database, wait):
    found = wait_of(standing(*lines, database=database), "default")
    assert (found and (found.kind, found.name)) == wait
    if found:
        assert found.place == OWN


@pytest.fixture
def told(worker):
    """told(lease, lines, ...): the worker "w" runs this job, and has told that it stands there."""

    def tell(leases, *lines, looks=2, database=None, age=0, **more):
        Worker.objects.filter(name="w").delete()
        place = {"jobs": [[one.job_id, one.fence] for one in leases], "threads": 1, "stack": [RUN, *lines]}
        place |= {"database": database, "looks": looks, "unchanged_seconds": 0.5}
        worker("w", concurrency=len(leases))
        content = {"answered": True, "places": [place], "unreachable": {}} | more
        Worker.objects.filter(name="w").update(stacks=content, stacks_at=UtcNowPlus(-age))

    return tell


def a_run(seconds, task=None):
    """The lease of a job that has run for so long."""
    make_job(task=task)
    lease = claim_one(lease_seconds=6000)
    set_columns(lease.job_id, locked_at=UtcNowPlus(-seconds))
    return lease


def test_an_answer_is_used_for_fifteen_seconds(told):
    lease = a_run(10)
    told([lease], OWN, *HTTP, age=10)
    assert codes(checked(explain_job(lease.job_id))) == ["outside_service", "running"]
    told([lease], OWN, *HTTP, age=20)
    assert codes(explain_job(lease.job_id)) == ["running"]


def test_a_stack_that_was_seen_once_or_is_of_another_run_says_nothing(told):
    lease = a_run(700)
    told([lease], OWN, *HTTP, looks=1)
    assert codes(explain_job(lease.job_id)) == ["running"]
    told([lease._replace(fence=lease.fence - 1)], OWN, *HTTP)
    assert codes(explain_job(lease.job_id)) == ["running"]


def test_a_job_that_has_just_begun_waits_for_no_service(told):
    lease = a_run(1)
    told([lease], OWN, *HTTP)
    assert codes(explain_job(lease.job_id)) == ["running"]


@pytest.mark.parametrize(
    ("seconds", "mean", "hangs"),
    [(590, None, False), (610, None, True), (61, 1, True), (59, 1, False), (900, 100, False), (1100, 100, True)],
)
def test_a_job_hangs_if_it_runs_for_far_longer_than_its_task_usually_does(told, seconds, mean, hangs):
    lease = a_run(seconds, task="app.charge")
    if mean:
        columns = {"queue": "q", "task": "app.charge", "runs": 10, "run_us": 10_000_000 * mean}
        JobStat.objects.create(id=b"1" * 16, span=JobStat.Span.TOTAL, begins_at=EPOCH, **columns)
    told([lease], OWN, "time_wrapper.py:3 sleep")
    found = checked(explain_job(lease.job_id))
    assert codes(found) == (["hanging"] if hangs else []) + ["running"]
    if hangs:
        assert found[0].evidence["usual_seconds"] == mean


def test_jobs_at_the_same_line_are_told_together_and_before_the_workers_are_said_to_be_busy(told):
    leases = [a_run(700) for _ in range(3)]
    told(leases, OWN)
    waiting = make_job()
    for found in (explain_job(waiting), explain_queue("q"), explain_backlog()):
        one = first(checked(found), "hanging")
        assert one.evidence["jobs"] == [lease.job_id for lease in leases]
        assert one.evidence["place"] == OWN
        assert codes(found)[1] == "workers_busy"
    assert named(explain_backlog(), "hanging").evidence["waiting_jobs"] == 1


def test_with_a_free_thread_the_wait_of_others_comes_later(told):
    lease = a_run(700)
    told([lease], OWN)
    Worker.objects.update(concurrency=2)
    waiting = make_job()
    for found in (explain_job(waiting), explain_queue("q"), explain_backlog()):
        assert codes(checked(found))[:2] == ["workers_busy", "hanging"]


def test_threads_without_a_job_that_wait_for_a_connection_are_told(told, worker):
    lease = a_run(10)
    told([lease], OWN)
    content = Worker.objects.get().stacks
    idle = content["places"][0] | {"jobs": [], "threads": 3, "stack": [RUN, *CONNECT], "database": "default"}
    Worker.objects.update(stacks=content | {"places": [*content["places"], idle]})
    one = named(checked(explain_backlog()), "connection")
    assert (one.evidence["threads"], one.evidence["jobs"], one.evidence["kind"]) == (3, [], "connect")
    assert codes(explain_job(lease.job_id)) == ["running"], "it waits for nothing"


@pytest.mark.parametrize("junk", [None, [], "x", {}, {"places": 1}, {"places": [{"jobs": 1}]}, {"answered": True}])
def test_what_another_release_has_written_is_left_out(told, junk):
    lease = a_run(10)
    told([lease], OWN)
    Worker.objects.update(stacks=junk)
    assert codes(explain_job(lease.job_id)) == ["running"]
    assert codes(explain_queue("q")) == ["running"]


def test_korean_has_the_same(told):
    lease = a_run(700)
    told([lease], OWN)
    with translation.override("ko"):
        assert "멈춰" in checked(explain_job(lease.job_id))[0].text


def test_a_running_job_costs_two_statements_more_after_an_answer(told):
    lease = a_run(700)
    told([lease], OWN, age=60)
    with CaptureQueriesContext(connection) as without:
        explain_job(lease.job_id)
    told([lease], OWN)
    with CaptureQueriesContext(connection) as captured:
        explain_job(lease.job_id)
    assert len(captured) - len(without) <= 2
