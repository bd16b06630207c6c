"""The tables as the server has them: migrations, indexes, the plan of the claim, and dead rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.db import Error, connections
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Index, Model, UniqueConstraint

from jobqueue.checks import pending_migrations
from jobqueue.db import vendor
from jobqueue.db.dialect import Plan
from jobqueue.db.expressions import Unestimated
from jobqueue.doctor.finding import SHOWN, Finding, Level, Need, check, report
from jobqueue.models import Job
from jobqueue.transitions.claiming import candidates

#: the migration leaves it out where each UPDATE would add an entry to it
_NOT_COPIED = "ix_lock_expiry"
#: queues whose plans are read: the server's statistics may differ between them
QUEUES_MAX = 3
#: whose plan is asked for if no queue has jobs: without its index the server may refuse it
ANY_QUEUE = "default"
#: the batch of a worker
ROWS = 100
#: a transaction that is open for longer makes claims slower
OLD_SECONDS = 300.0
#: dead rows that autovacuum leaves, beside a share of the living ones
DEAD_MIN, DEAD_SHARE = 100_000, 0.1


def grants(account: str, using: str) -> list[str]:
    """The statements that let an account run workers: rights on the rows of all tables, and none on the tables."""
    grant, names = vendor(using).grants, sorted(model._meta.db_table for model in _models())
    written = grant(connections[using], account, "SELECT, INSERT, UPDATE, DELETE", names)
    # Workers refuse to start where a migration was not run.
    return written + grant(connections[using], account, "SELECT", [MigrationRecorder.Migration._meta.db_table])


@check("migrations", "all migrations of jobqueue were run", Need.DATABASE, migrations_unapplied=Level.ERROR)
def migrations(using: str) -> Iterator[Finding]:
    """Compare the package with the table of Django's migrations."""
    if missing := pending_migrations(using):
        yield report(
            "migrations_unapplied",
            f"Migrations were not run on {using!r}: {', '.join(missing)}. Workers do not start.",
            f"Run: python manage.py migrate --database {using}",
            {"migrations": list(missing)},
        )


@check("tables", "all tables of jobqueue are there", Need.TABLES, table_missing=Level.ERROR)
def tables(using: str) -> Iterator[Finding]:
    """Other tools may have dropped a table, although all migrations were run."""
    missing = sorted({model._meta.db_table for model in _models()} - _present(using))
    if missing:
        yield report(
            "table_missing",
            f"Tables are missing, although the migrations were run: {', '.join(missing)}. Somebody has dropped "
            "them, or this account has no right on them, so that the server does not show them.",
            "Restore them from a backup, or make them again: `manage.py sqlmigrate jobqueue 0001` prints the "
            "statements. docs/howto/deploy.md has the rights.",
            {"tables": list(missing)},
        )


@check(
    "indexes",
    "all indexes of jobqueue are there, with their columns",
    Need.TABLES,
    index_missing=Level.ERROR,
    index_differs=Level.ERROR,
)
def indexes(using: str) -> Iterator[Finding]:
    """Compare the models with the names and columns that the server has."""
    present = _present(using)
    models = {model._meta.db_table: model for model in _models() if model._meta.db_table in present}
    found = vendor(using).indexes(connections[using], list(models))
    named = {(one.table, one.name): one.columns for one in found}
    unnamed = {(one.table, one.columns) for one in found if not one.name}
    for table, model in models.items():
        for name, columns in _wanted(model).items():
            if name == _NOT_COPIED and vendor(using).copies_updated_rows:
                continue
            real = named.get((table, name))
            if real is None and (table, columns) not in unnamed:
                yield _missing(name, table, columns)
            elif real is not None and real != columns:
                yield _differs(name, table, columns, real)


def _missing(name: str, table: str, columns: tuple[str, ...]) -> Finding:
    return report(
        "index_missing",
        f"The index {name} is missing on {table}, or is hidden from the planner: statements read, and on MySQL and "
        "MariaDB lock, far more rows than they need. Workers do not start without an index of job_queue.",
        "Make it again: `manage.py sqlmigrate jobqueue 0001` prints the statement. If the server has it, but invalid "
        "or hidden, drop it first.",
        {"index": name, "table": table, "columns": list(columns)},
        level=_level(table),
    )


def _differs(name: str, table: str, columns: tuple[str, ...], real: tuple[str, ...]) -> Finding:
    return report(
        "index_differs",
        f"The index {name} on {table} has the columns {', '.join(real)} instead of {', '.join(columns)}: statements "
        "read, and on MySQL and MariaDB lock, far more rows than they need.",
        "Drop it, and make it again: `manage.py sqlmigrate jobqueue 0001` prints the statement.",
        {"index": name, "table": table, "columns": list(columns), "found": list(real)},
        level=_level(table),
    )


def _level(table: str) -> Level | None:
    return None if table == Job._meta.db_table else Level.WARNING


def _models() -> list[type[Model]]:
    return [model for model in apps.get_app_config("jobqueue").get_models() if not model._meta.proxy]


def _present(using: str) -> set[str]:
    with connections[using].cursor() as cursor:
        return set(connections[using].introspection.table_names(cursor))


def _wanted(model: type[Model]) -> dict[str, tuple[str, ...]]:
    """The columns of each index and unique constraint of a model, by name."""
    options: Any = model._meta
    made: list[Index | UniqueConstraint] = [*options.indexes]
    made += [one for one in options.constraints if isinstance(one, UniqueConstraint)]
    return {
        str(one.name): tuple(options.get_field(field.removeprefix("-")).column for field in one.fields)
        for one in made
        if one.fields
    }


@check("claim_plan", "claims go by ix_pick, without a sort", Need.TABLES, claim_plan=Level.ERROR)
def claim_plan(using: str) -> Iterator[Finding]:
    """EXPLAIN of the claim on the real tables, for the first queues of the table.

    The plan for an empty table is not judged: PostgreSQL may sort the one row that it expects there.
    """
    try:
        queues = candidates.queue_names(using=using, limit=QUEUES_MAX)
        plans = {queue: plan_of(queue, using) for queue in queues or [ANY_QUEUE]}
    except Error as error:
        # On MySQL and MariaDB the statements name their index, and are refused without it.
        yield _wrong_plan("", f"Claims are refused: {error}", str(error), using)
        return
    for queue, plan in plans.items():
        if queues and plan is not None and (wrong := _wrong(plan)):
            yield _wrong_plan(queue, f"The claim of queue {queue} {wrong}", plan.text, using)
            return


def plan_of(queue: str, using: str) -> Plan | None:
    """The plan of the SELECT by which a claim finds the due jobs of a queue; without its locks, which are not planned.

    EXPLAIN does not run it; a plan of PostgreSQL that looks wrong is run once, which tells how many rows it reads.
    """
    rows = candidates.due(Unestimated(queue), 0, using=using).values_list("pk", "payload")[:ROWS]
    sql, params = rows.query.get_compiler(using).as_sql()
    return vendor(using).plan(connections[using], Job._meta.db_table, sql, params)


def _wrong(plan: Plan) -> str:
    if plan.uses(candidates.INDEX) and not plan.sorts and not plan.scans:
        return ""
    if plan.is_small:
        return ""
    if plan.scans:
        return "would read the whole job table"
    return f"would sort its rows instead of reading {candidates.INDEX} in its order"


def _wrong_plan(queue: str, text: str, plan: str, using: str) -> Finding:
    return report(
        "claim_plan",
        f"{text}. Each claim must read the jobs that it takes, in the order of {candidates.INDEX}, and no others: on "
        "MySQL and MariaDB it locks what it reads.",
        "Make missing indexes again (`manage.py sqlmigrate jobqueue 0001` prints them), then renew the statistics of "
        f"the planner: run {vendor(using).analyze_sql(Job._meta.db_table)}.",
        {"queue": queue, "plan": list(plan.splitlines())},
    )


@check("transactions", "no transaction is open for long", Need.DATABASE, old_transaction=Level.WARNING)
def old_transactions(using: str) -> Iterator[Finding]:
    """Find old transactions of any session: they keep rows that others have deleted or changed."""
    found = vendor(using).diagnostics.old_transactions(connections[using], Job._meta.db_table, OLD_SECONDS, SHOWN)
    if not found:
        return
    oldest = found[0]
    does = "runs no statement, so a client hangs or has forgotten it" if oldest.idles else "still runs a statement"
    yield report(
        "old_transaction",
        f"Session {oldest.session} has had a transaction open for {oldest.seconds:.0f} s and {does}. It keeps its row "
        "locks, and claims become slower for as long as it is open.",
        f"End it ({vendor(using).end_session_sql(oldest.session)}); see docs/runbook/deadlocks.md#an-old-transaction.",
        {"sessions": [{"session": one.session, "seconds": one.seconds, "idles": one.idles} for one in found]},
    )


@check("dead_rows", "dead rows of the job table are removed", Need.TABLES, dead_rows=Level.WARNING)
def dead_rows(using: str) -> Iterator[Finding]:
    """Read the statistics of PostgreSQL; other servers have none."""
    table = Job._meta.db_table
    rows = vendor(using).diagnostics.dead_rows(connections[using], table)
    if rows is not None and rows.dead > max(DEAD_MIN, DEAD_SHARE * rows.live):
        yield report(
            "dead_rows",
            f"{table} has about {rows.dead} dead rows beside {rows.live} living ones. Claims read their index "
            "entries, too, and become slower.",
            "Let autovacuum start earlier, as docs/howto/postgresql-settings.md#vacuum-the-job-table-often shows. If "
            "there is an old transaction, end it first.",
            {"dead": rows.dead, "live": rows.live},
        )
