"""After a change of a limit no more jobs are opened than the new limit allows."""

import pytest

from jobqueue import flow, task
from jobqueue.gates import declared
from jobqueue.maintenance.worker_rows import register, retire
from jobqueue.models import Job
from jobqueue.testing import travel
from jobqueue.transitions import ack
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, sweep, take, taken
from tests.marks import finding
from tests.memories import forget_tasks

pytestmark = pytest.mark.django_db


def open_jobs():
    return Job.objects.filter(status=Job.Status.READY, gate=0).count()


def test_a_raised_limit_opens_as_many_as_may_start(limited):
    work = limited(concurrency_limit=2)
    ids = add(30, work)
    assert taken() + taken() == ids[:2]
    flow.set_limit("q", task=work, concurrency=5)
    open_in_time()
    assert open_jobs() == 3
    assert taken() == ids[2:5]


def test_a_raised_rate_opens_a_bucket(limited):
    work = limited(rate_limit="1/h")
    ids = add(30, work)
    assert taken() + taken() == ids[:1]
    flow.set_limit("q", task=work, rate="5/s")
    open_in_time()
    assert open_jobs() <= 5


def test_a_limit_of_0_opens_nothing(limited):
    work = limited(concurrency_limit=2)
    ids = add(30, work)
    leases = take()
    taken()
    flow.set_limit("q", task=work, concurrency=0)
    ack(leases[ids[0]])
    open_in_time()
    assert open_jobs() <= 1
    assert taken() == []


def test_a_limit_that_is_taken_away_opens_all(limited):
    work = limited(concurrency_limit=2)
    ids = add(30, work)
    assert taken() + taken() == ids[:2]
    flow.set_limit("q", task=work, concurrency=None)
    while open_in_time():
        pass
    assert taken() == ids[2:]


def test_a_limit_that_is_cleared_is_that_of_the_task_again(limited):
    work = limited(concurrency_limit=5)
    ids = add(30, work)
    flow.set_limit("q", task=work, concurrency=2)
    assert taken() + taken() == ids[:2]
    flow.clear_limit("q", task=work)
    open_in_time()
    assert taken() == ids[2:5]


def test_a_limit_of_0_of_one_task_leaves_those_of_another_with_the_same_key_alone(own_registry):
    fields = {"queue_name": "q", "concurrency_key": jobs.by_argument, "concurrency_limit": 1}
    one, other = task(**fields)(jobs.work), task(**fields)(jobs.other)
    ids = add(1, other, "k") + add(1, other, "k") + add(1, one, "k")
    lease = take()[ids[0]]
    taken()
    flow.set_limit("q", task=one, concurrency=0)
    ack(lease)
    started = []
    for _ in range(3):
        sweep()
        look_again()
        started += taken()
    assert started == [ids[1]]


class TestNewCode:
    """Workers are started again with another limit in their code. Jobs that wait are opened by the new one."""

    def starts_with(self, name, work):
        """A worker of the present code runs."""
        register(name, supervisor_pid=1, boot_id="b", queues="q", concurrency=1, using="default")
        return work

    def deploy(self, make, *, before, after, **fields):
        """The ids of 30 jobs of key k, which wait by the limit of `before`; then workers with that of `after` run."""
        work = self.starts_with("old", make(**before, **fields))
        ids = add(30, work, "k")
        leases = take()
        assert taken() == []
        retire("old", "stopped", using="default")
        forget_tasks(declared.tasks())
        self.starts_with("new", make(**after, **fields))
        for job_id in leases:
            ack(leases[job_id])
        # What that has opened.
        taken()
        sweep()
        while open_in_time():
            pass
        return ids

    @pytest.fixture(params=[{}, {"concurrency_key": jobs.by_argument}], ids=["task", "key"])
    def fields(self, request):
        return request.param

    @finding("F2")
    def test_a_limit_that_was_raised_opens_as_many_as_it_allows(self, limited, fields):
        ids = self.deploy(limited, before={"concurrency_limit": 1}, after={"concurrency_limit": 8}, **fields)
        assert open_jobs() == 7
        assert taken() == ids[2:9]
        assert taken() == []

    @finding("F2")
    def test_a_limit_that_was_removed_opens_all(self, limited, fields):
        ids = self.deploy(limited, before={"concurrency_limit": 1, **fields}, after={})
        assert taken() == ids[2:]

    def test_a_limit_that_was_lowered_is_not_passed(self, limited, fields):
        self.deploy(limited, before={"concurrency_limit": 8}, after={"concurrency_limit": 2}, **fields)
        assert taken() == []
        assert Job.objects.filter(status=Job.Status.PROCESSING).count() == 2

    @finding("F2")
    def test_a_rate_that_was_raised_opens_a_bucket(self, limited, fields):
        with travel(0) as clock:
            self.deploy(limited, before={"rate_limit": "1/h"}, after={"rate_limit": "5/s"}, **fields)
            for _ in range(20):
                clock.forward(0.06)
                open_in_time()
            assert len(taken()) >= 3

    @finding("F2")
    def test_a_rate_that_was_removed_opens_all(self, limited, fields):
        ids = self.deploy(limited, before={"rate_limit": "2/h", **fields}, after={})
        assert taken() == ids[1:]

    def test_a_limit_that_an_operator_has_set_stays(self, limited, fields):
        flow.set_limit("q", task=limited(), concurrency=3)
        self.deploy(limited, before={"concurrency_limit": 1}, after={"concurrency_limit": 8}, **fields)
        assert Job.objects.filter(status=Job.Status.PROCESSING).count() == 3
        assert open_jobs() == 0

    def test_while_workers_with_older_code_run_the_higher_limit_opens_and_each_goes_by_its_own(self, limited):
        add(30, self.starts_with("old", limited(concurrency_limit=3)))
        assert len(taken()) == 3
        assert taken() == []
        self.starts_with("new", limited(concurrency_limit=5))
        sweep()
        open_in_time()
        # A claim of the older code.
        limited(concurrency_limit=3)
        assert taken() == []
        sweep()
        open_in_time()
        limited(concurrency_limit=5)
        assert len(taken()) == 2
        assert taken() == []

    def test_a_limit_is_not_gone_while_a_worker_runs_that_has_it(self, limited):
        add(30, self.starts_with("old", limited(concurrency_limit=1)))
        taken()
        assert taken() == []
        forget_tasks(declared.tasks())
        self.starts_with("new", limited())
        sweep()
        assert open_in_time() == 0
        retire("old", "stopped", using="default")
        sweep()
        while open_in_time():
            pass
        assert len(taken()) == 29

    def test_where_no_worker_serves_the_queue_nothing_is_known_and_nothing_changes(self, limited):
        add(30, limited(concurrency_limit=1))
        taken()
        taken()
        register("other", supervisor_pid=1, boot_id="b", queues="mail", concurrency=1, using="default")
        sweep()
        assert open_in_time() == 0
