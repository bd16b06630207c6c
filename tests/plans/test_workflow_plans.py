"""What the end of a node reads: its own pairs by their indexes, however many there are of others."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import groups, workflow
from jobqueue.conf import load
from jobqueue.context.running_group import Parents
from jobqueue.explain import explain_job
from jobqueue.maintenance import cleaner, sweeps
from jobqueue.models import JobGroup
from jobqueue.transitions import ack, ack_many, claim, fail, retry
from tests.app import tasks
from tests.groups import nodes
from tests.marks import committed
from tests.plans.test_plans import EXPLAIN, plan
from tests.plans.test_redrive_plans import INNODB, reads, run
from tests.purge import wait_for_purge
from tests.settings import FULL, VENDOR

# ANALYZE commits on MySQL.
pytestmark = committed
DOUBLINGS = 16 if FULL else 13
PAIRS = "job_group_parent"
OTHERS = 10_000_000  # the ids of other groups and jobs begin here


def of_width(width):
    """`width` nodes, and a child of them all; the workflow's id."""
    wf = workflow("wide", if_failed="hold", on_done=tasks.group_done)
    parents = [wf.add(tasks.add, 1, 1) for _ in range(width)]
    wf.add(tasks.tell_parents, after=parents, name="child")
    return wf.start()


def fan(children):
    """A node with so many children, which runs; its lease."""
    nodes.empty()
    wf = workflow("fan")
    top = wf.add(tasks.add, 1, 1)
    for _ in range(children):
        wf.add(tasks.add, 1, 1, after=[top])
    wf.start()
    return claim("default", 1, worker="w")[0]


def fill():
    """Very many pairs of other workflows; half of them outstanding."""
    row = "group_id, child_id, parent_id, state"
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {PAIRS} ({row}) VALUES ({OTHERS}, {OTHERS}, {OTHERS}, 0)")
        cursor.execute(f"INSERT INTO {PAIRS} ({row}) VALUES ({OTHERS}, {OTHERS}, {OTHERS}, 1)")
        for number in range(DOUBLINGS):
            step = 2**number
            columns = f"group_id + {step}, child_id + {step}, parent_id + {step}, state"
            cursor.execute(f"INSERT INTO {PAIRS} ({row}) SELECT {columns} FROM {PAIRS} WHERE group_id >= {OTHERS}")
        cursor.execute({"sqlite": "ANALYZE", "postgres": f"ANALYZE {PAIRS}"}.get(VENDOR, f"ANALYZE TABLE {PAIRS}"))
    wait_for_purge()


@pytest.fixture
def filled(transactional_db):
    yield fill
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {PAIRS}")
    if VENDOR == "sqlite":
        # Other tests have no statistics.
        run("DELETE FROM sqlite_stat1")
        run("ANALYZE sqlite_schema")


def about_pairs(work):
    """The statements of `work` that read or write pairs, but not those that insert them."""
    with CaptureQueriesContext(connection) as captured:
        work()
    found = [query["sql"] for query in captured if PAIRS in query["sql"]]
    return [sql for sql in found if sql.lstrip("(").startswith(("SELECT", "UPDATE", "DELETE"))]


def check(statement):
    """By the key or an index of the pairs."""
    found = plan(run, statement)
    assert f"scan {PAIRS}\n" not in found, f"{statement}\n{found}"
    assert f"seq scan on {PAIRS}" not in found, f"{statement}\n{found}"
    if INNODB:
        kinds = [row[4 if VENDOR == "mysql" else 3] for row in run(EXPLAIN + statement)]
        assert not {"ALL", "index"} & {*kinds}, f"{statement}\n{found}"


def test_each_statement_about_pairs_goes_by_an_index(filled):
    number = of_width(3)
    child = nodes.job("child").pk
    filled()
    first, *others = claim("default", 3, worker="w")
    statements = about_pairs(lambda: explain_job(child))
    statements += about_pairs(lambda: fail(first._replace(max_attempts=1), error="wrong"))
    statements += about_pairs(lambda: ack_many(others))
    statements += about_pairs(lambda: retry(first.job_id))
    statements += about_pairs(lambda: ack(claim("default", 1, worker="w")[0]))
    retried = len(statements)
    assert retried >= 8
    statements += about_pairs(lambda: Parents(child, "default").states())
    nodes.run_all()
    of_width(2)
    statements += about_pairs(lambda: sweeps.GroupSweep().sweep_all(load(), using="default"))
    JobGroup.objects.filter(pk=number).update(ended_at="2020-01-01T00:00:00Z")
    statements += about_pairs(lambda: cleaner.GROUPS.run_once(load(), using="default"))
    assert len(statements) >= retried + 3
    for statement in statements:
        if not (INNODB and statement.startswith("DELETE")):
            check(statement)


def cost_of_last_ack():
    """What the database reads for the end of the last parent of a node."""
    of_width(4)
    *most, last = claim("default", 4, worker="w")
    ack_many(most)
    wait_for_purge()
    return reads(lambda: ack(last), PAIRS)


def test_the_end_of_the_last_parent_reads_no_more_where_there_are_very_many_pairs(filled):
    before = cost_of_last_ack()
    filled()
    after = cost_of_last_ack()
    assert after <= before * 1.2 + 20, (before, after)


def test_the_end_of_one_of_many_parents_reads_no_more_than_that_of_one_of_few(filled):
    costs = []
    for width in (4, 400):
        nodes.empty()
        of_width(width)
        first, *_ = claim("default", 4, worker="w")
        wait_for_purge()
        costs.append(reads(lambda: ack(first), PAIRS))  # noqa: B023  at once
    assert costs[1] <= costs[0] * 1.2 + 20, costs


def sent(captured):
    """How many statements there were, but for notifications: one soon after another one is left out."""
    return sum("pg_notify" not in query["sql"] for query in captured)


def test_the_end_of_a_node_takes_as_many_statements_for_many_children_as_for_few(transactional_db, read_once):
    counts = []
    for children in (3, 300):
        lease = fan(children)
        with CaptureQueriesContext(connection) as captured:
            ack(lease)
        counts.append(sent(captured))
        assert nodes.behind_the_gate() == []
    assert counts[1] <= counts[0]  # the first may read what the process then knows


def test_a_cascade_takes_as_many_statements_for_many_children_as_for_few(transactional_db, read_once):
    counts = []
    for children in (3, 300):
        lease = fan(children)
        with CaptureQueriesContext(connection) as captured:
            fail(lease._replace(max_attempts=1), error="wrong")
        counts.append(sent(captured))
        assert {*nodes.states().values()} == {"FAILED", "CANCELED"}
    assert counts[1] <= counts[0]  # the first may read what the process then knows


def test_a_resume_reads_the_pairs_of_its_workflow_only(filled):
    number = of_width(3)
    first, *others = claim("default", 3, worker="w")
    fail(first._replace(max_attempts=1), error="wrong")
    ack_many(others)
    filled()
    statements = about_pairs(lambda: groups.resume(number))
    assert statements
    for statement in statements:
        check(statement)
