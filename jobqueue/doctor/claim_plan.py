"""Whether the database would read the jobs of a claim by ix_pick, in its order: EXPLAIN on the real tables."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import Error, connections

from jobqueue.db import vendor
from jobqueue.db.expressions import Unestimated
from jobqueue.db.set_up import Plan
from jobqueue.doctor.finding import Finding, Level
from jobqueue.models import Job
from jobqueue.transitions.claiming import candidates

#: queues whose plans are read: the server's statistics may differ between them
QUEUES_MAX = 3
#: whose plan is asked for if no queue has jobs: without its index the server may refuse it
ANY_QUEUE = "default"
#: the batch of a worker
ROWS = 100


def claim_plan(using: str) -> Iterator[Finding]:
    """claim_plan, for the first queues of the table.

    The plan for an empty table is not judged: PostgreSQL may sort the one row that it expects there.
    """
    try:
        queues = candidates.queue_names(using=using, limit=QUEUES_MAX)
        plans = {queue: plan_of(queue, using) for queue in queues or [ANY_QUEUE]}
    except Error as error:
        # On MySQL and MariaDB the statements name their index, and are refused without it.
        yield _finding("", f"Claims are refused: {error}", str(error))
        return
    for queue, plan in plans.items():
        if queues and plan is not None and (wrong := _wrong(plan)):
            yield _finding(queue, f"The claim of queue {queue} {wrong}", plan.text)
            return


def plan_of(queue: str, using: str) -> Plan | None:
    """The plan of the SELECT by which a claim finds the due jobs of a queue; without its locks, which are not planned.

    EXPLAIN does not run it; a plan of PostgreSQL that looks wrong is run once, which tells how many rows it reads.
    """
    rows = candidates.due(Unestimated(queue), 0, using=using).values_list("pk", "payload")[:ROWS]
    sql, params = rows.query.get_compiler(using).as_sql()
    return vendor(using).set_up.plan(connections[using], Job._meta.db_table, sql, params)


def _wrong(plan: Plan) -> str:
    if plan.uses(candidates.INDEX) and not plan.sorts and not plan.scans:
        return ""
    if plan.is_small:
        return ""
    if plan.scans:
        return "would read the whole job table"
    return f"would sort its rows instead of reading {candidates.INDEX} in its order"


def _finding(queue: str, text: str, plan: str) -> Finding:
    return Finding(
        Level.ERROR,
        "claim_plan",
        f"{text}. Each claim must read the jobs that it takes, in the order of {candidates.INDEX}, and no others: on "
        "MySQL and MariaDB it locks what it reads.",
        "Make missing indexes again (`manage.py sqlmigrate jobqueue 0001` prints them), then renew the statistics of "
        "the planner: run ANALYZE TABLE job_queue on MySQL and MariaDB, ANALYZE job_queue on PostgreSQL, ANALYZE on "
        "SQLite.",
        {"queue": queue, "plan": list(plan.splitlines())},
    )
