"""Statements read only the rows that they need, also where the statistics know no job that waits, or not the queue."""

import json
from itertools import count

import pytest
from django.db import connection

from jobqueue import enqueue_many
from jobqueue.db.clock import UtcNowPlus
from jobqueue.gates.backlog import levels_below, top_levels
from jobqueue.models import Job
from jobqueue.transitions import ack_many, claim, held_by
from jobqueue.transitions.claiming import candidates
from tests import memories
from tests.settings import VENDOR

pytestmark = [
    pytest.mark.skipif(VENDOR != "postgres", reason="other planners do not ask which values occur"),
    pytest.mark.django_db,
]
WAITING = 3000


@pytest.fixture(autouse=True, params=["q", "old"], scope="module")
def burst(request, for_all_tests):
    """Jobs that came after the last ANALYZE, which found only jobs that are done, of the same queue or of others."""

    def load():
        enqueue_many(request.param, [None] * 2000)
        ack_many(claim(request.param, 2000, worker="w"))
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE job_queue")
        enqueue_many("q", [None] * WAITING)

    with for_all_tests(load):
        yield


def literal(cursor, sql, params):
    """A plan for the values of this run."""
    cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)


def prepared(cursor, sql, params):
    """One for whatever values a prepared statement is run with."""
    number = count(1)
    cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    pieces = sql.split("%s")
    text = "".join(f"{piece}${next(number)}" for piece in pieces[:-1]) + pieces[-1]
    # The driver tells the type of a number, and lets the server find the types of other values.
    types = ", ".join("bigint" if isinstance(value, int) else "unknown" for value in params or ())
    cursor.execute(f"PREPARE looked_at{f' ({types})' if types else ''} AS {text}".replace("%%", "%"))
    run_with = f"({', '.join(['%s'] * len(params or ()))})" if params else ""
    cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE looked_at {run_with}", params)


def rows_read(work, explain, table="job_queue"):
    """How many rows each statement of `work` about a table reads when it is run again."""
    found = []

    def keep(execute, sql, params, many, context):
        found.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(keep):
        work()
    reads = [read_by(statement, explain) for statement in found if table in statement[0]]
    assert reads
    return reads


def read_by(statement, explain):
    with connection.cursor() as cursor:
        explain(cursor, *statement)
        (plan,) = cursor.fetchone()
        if explain is prepared:
            cursor.execute("DEALLOCATE looked_at")
    return sum(scanned((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))


def scanned(node):
    """By each scan below this node of a plan."""
    if "Relation Name" in node and node["Node Type"].endswith("Scan"):
        each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield each * node["Actual Loops"]
    for child in node.get("Plans", ()):
        yield from scanned(child)


def starved():
    memories.reset()
    return [level for level, _ in candidates.aged_levels("q", using="default")]


LOOKS = {
    "claim": lambda: claim("q", worker="w"),
    "batch": lambda: claim("q", 10, worker="w"),
    "heads": lambda: candidates.heads(["q"], using="default"),
    "names": lambda: candidates.waiting_names(using="default"),
    "levels": lambda: list(candidates.due_levels("q", using="default")),
    "starved": starved,
    "priorities": lambda: levels_below(top_levels([("q", Job.Status.READY, 0)], "default"), "default"),
}


@pytest.mark.parametrize("explain", [literal, prepared])
@pytest.mark.parametrize("look", LOOKS)
def test_rows_that_are_not_taken_are_not_read(look, explain, settings):
    settings.JOBQUEUE = {"QUEUES": {"q": {"STARVE_SECONDS": 600}}} if look == "starved" else {}
    Job.objects.filter(status=0, pk__in=Job.objects.filter(status=0)[:5]).update(run_at=UtcNowPlus(-3600))
    # Those that a claim takes are read again by their keys.
    assert max(rows_read(LOOKS[look], explain)) <= (20 if look == "batch" else 3), rows_read(LOOKS[look], explain)


@pytest.mark.parametrize("explain", [literal, prepared])
def test_the_leases_of_other_workers_are_not_read(explain):
    claim("q", 1000, worker="other")
    (lease,) = claim("q", worker="mine")
    assert [held.job_id for held in held_by("mine", using="default")] == [lease.job_id]
    assert rows_read(lambda: held_by("mine", using="default"), explain) == [1]
