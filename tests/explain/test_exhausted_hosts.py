"""host_exhausted: workers say in their rows what their host is short of."""

import sys

import pytest

from jobqueue.explain import explain_backlog, explain_queue
from jobqueue.models import Worker
from tests.app import tasks
from tests.explain.helpers import checked, codes, codes_here, first, named, of_job, of_queue
from tests.factories import make_job
from tests.marks import committed
from tests.patience import wait_until
from tests.process.harness import SHORT

MB = 2**20


def short(resource, free, limit, of):
    return {resource: {"free": free, "limit": limit, "of": of}}


def told(found):
    return [one for one in found if one.code == "host_exhausted"]


@committed
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_a_worker_whose_jobs_leave_sockets_open_is_named_while_they_do(start, evidence, tmp_path):
    gate = tmp_path / "gate"
    running = tasks.leaves_sockets_open.enqueue(str(gate)).id
    group = start("runworker", *SHORT, "--concurrency", "1")
    wait_until(lambda: evidence.read("start"), what="the sockets")
    # More than the worker claims ahead.
    waits = tasks.add.enqueue_many([(number, 1) for number in range(300)])[-1].id
    wait_until(lambda: explain_backlog()[0].code == "host_exhausted", what="the next heartbeats")
    child = Worker.objects.get()
    for found in (of_job(waits), of_queue("default"), checked(explain_backlog())):
        one = first(found, "host_exhausted")
        assert (one.evidence["host"], one.evidence["worker_names"]) == (child.host, [child.name])
        assert (one.evidence["resource"], one.evidence["of"]) == ("descriptors", "process")
        assert one.evidence["limit"] == int(evidence.read("start")[0][5])
        assert 0 <= one.evidence["free"] < 0.1 * one.evidence["limit"]
        assert child.host in one.text
        assert "file descriptors" in one.text
    assert checked(explain_backlog())[0].evidence["waiting_jobs"] > 1
    group.prints("is short of file descriptors")
    gate.touch()
    wait_until(lambda: not told(explain_queue("default")) and Worker.objects.get().troubles is None, what="the end")
    wait_until(lambda: codes(of_job(running)) == codes(of_job(waits)) == ["ended"], what="both ends")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("troubles", "words"),
    [
        (short("memory", 100 * MB, 8192 * MB, "host"), "100 of 8192 MB are free"),
        (short("memory", 10 * MB, 512 * MB, "cgroup"), "10 of the 512 MB that the control group"),
        (short("disk", 10 * MB, 9000 * MB, "/tmp"), "10 of 9000 MB are free where /tmp is"),
        (short("descriptors", 4, 1024, "process"), "it has 1020 of 1024 open"),
        (short("descriptors", 5, 9000, "host"), "have 8995 of 9000 open"),
    ],
)
def test_each_resource_has_its_words_and_its_next_step(worker, troubles, words):
    worker("w", host="vm1", troubles=troubles)
    job_id = make_job()
    for found in (of_job(job_id), of_queue(), checked(explain_backlog())):
        one = first(found, "host_exhausted")
        assert words in one.text
        assert one.evidence["resource"] in troubles
        assert "workers_busy" in codes(found)


@pytest.mark.django_db
def test_the_backlog_tells_it_where_no_job_waits_too(worker):
    worker("w", host="vm1", troubles=short("memory", MB, 8192 * MB, "host"))
    assert codes(checked(explain_backlog())) == ["host_exhausted"]


@pytest.mark.django_db
def test_where_other_workers_serve_the_queue_they_are_the_likelier_reason(worker):
    worker("w1", host="vm1", troubles=short("memory", MB, 8192 * MB, "host"))
    worker("w2", host="vm2")
    job_id = make_job()
    assert codes_here(of_job(job_id)) == ["workers_busy", "host_exhausted"]
    assert named(checked(explain_backlog()), "host_exhausted").evidence["host"] == "vm1"


@pytest.mark.django_db
def test_the_workers_of_one_host_are_told_together_with_the_figures_of_the_worst(worker):
    for number, free in enumerate((9, 3, 5)):
        worker(f"w{number}", host="vm1", troubles=short("descriptors", free, 100, "process"))
    make_job()
    one = named(checked(explain_backlog()), "host_exhausted")
    assert (one.evidence["free"], one.evidence["worker_names"]) == (3, ["w1", "w2", "w0"])


@pytest.mark.django_db
@pytest.mark.parametrize("troubles", [None, {}, [1], "x", {"memory": 1}, {"memory": {"free": "x"}}, {"stalled": {}}])
def test_healthy_workers_and_rows_that_cannot_be_read_are_no_reason(worker, troubles):
    worker("w", troubles=troubles)
    job_id = make_job()
    for found in (of_job(job_id), of_queue(), checked(explain_backlog())):
        assert codes_here(found) == ["workers_busy"]
