"""System checks of the settings and of the queue's database.

Checks of settings always run. Those tagged "database" ask the server and run with `check --database ALIAS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib.util import find_spec
from types import FrameType

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core import checks
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.exceptions import BadMigrationError, NodeNotFoundError
from django.db.migrations.executor import MigrationExecutor

from jobqueue import conf
from jobqueue.alarms.delivery import alarm_problems
from jobqueue.conf.known_tasks import all_tasks, having
from jobqueue.db import Problem, options_problems, supported, vendor
from jobqueue.db.clock import read_now
from jobqueue.db.sessions import pool_problem
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import StatementTimeout, WrongSettings
from jobqueue.failures.project import missing_class
from jobqueue.middleware.chain import chain
from jobqueue.models import Job
from jobqueue.outbox.destinations.base import NotInstalled
from jobqueue.outbox.routes import Routes
from jobqueue.schedules.declaring import check_problems
from jobqueue.tasks import registry
from jobqueue.tasks.checks import entry_problems, nesting_problems, policy_problems, unused_problem
from jobqueue.tasks.discovery import unfindable
from jobqueue.wakeup.redis_client import find_server

SKEW_SECONDS = 5.0
#: how long each statement of the checks that ask the database may take
READ_SECONDS = 4.0
#: the largest id that Django's lookups, other languages and PostgreSQL take; MySQL's column holds twice as much
ID_MAX = 2**63 - 1
_NEAR = ID_MAX // 10 * 9
# Bulk inserts and acks put texts of up to this total length into one statement.
_STATEMENT_BYTES = 4 * 1024 * 1024

#: the checks of settings, which register() gives to Django
_of_settings: list[Callable[..., list[checks.CheckMessage]]] = []


def register() -> None:
    """Register the checks; called by the AppConfig."""
    for check in _of_settings:
        checks.register(check, "jobqueue")
    checks.register(check_database, checks.Tags.database)
    checks.register(check_tables, checks.Tags.database)


def _check(problems: Callable[[conf.Settings], Iterable[Problem]]) -> Callable[..., list[checks.CheckMessage]]:
    """Make a function a check of the settings, which always runs."""

    def check(app_configs: object = None, **kwargs: object) -> list[checks.CheckMessage]:
        return messages(problems(_conf()))

    # Not wraps(): Django reads the signature, and asks for **kwargs.
    check.__name__, check.__doc__ = problems.__name__, problems.__doc__
    _of_settings.append(check)
    return check


def messages(problems: Iterable[Problem]) -> list[checks.CheckMessage]:
    """Problems as Django shows them."""
    kinds = {"E": checks.Error, "W": checks.Warning, "I": checks.Info}
    return [kinds[code[0]](text, hint=hint or None, id=f"jobqueue.{code}") for code, text, hint in problems]


@_check
def check_settings(found: conf.Settings) -> Iterator[Problem]:
    """E001 a wrong setting, E002 DATABASE is no alias, E003 the lease is not longer than three heartbeats, E004 WAKEUP
    or REDIS_URL needs redis-py, E005 a route of OUTBOX leads nowhere, E006 WAKEUP or REDIS_URL names no cache on Redis,
    E009 a HOOK of ALARMS is no function, W029 a broker needs a package, W034 nobody is told, W035 an alarm cannot fire,
    W036 a setting that looks like JOBQUEUE.
    """
    for problem in conf.read(getattr(settings, "JOBQUEUE", {}))[1]:
        code = "E003" if problem.startswith("LEASE_SECONDS (") else "E001"
        yield Problem(code, f"JOBQUEUE: {problem}.", "See docs/reference/settings.md.")
    if found.database not in settings.DATABASES:
        hint = f"Choose one of {', '.join(sorted(settings.DATABASES))}."
        yield Problem("E002", f"JOBQUEUE['DATABASE'] = {found.database!r} is not in DATABASES.", hint)
    yield from [*_misspelt(), *_redis_problems(found), *alarm_problems(found)]
    for error in Routes(found.database, found.outbox_settings.routes).problems():
        if isinstance(error, NotInstalled):
            yield Problem("W029", str(error), "If relays run on other hosts only, silence jobqueue.W029 here.")
        else:
            yield Problem("E005", str(error), "See docs/howto/brokers.md.")


def _misspelt() -> Iterator[Problem]:
    """Dicts whose names are nearly JOBQUEUE, where there is none of that name."""
    if hasattr(settings, "JOBQUEUE"):
        return
    for name in get_close_matches("JOBQUEUE", [name for name in dir(settings) if name.isupper()], cutoff=0.8):
        if isinstance(getattr(settings, name), Mapping):
            yield Problem(
                "W036",
                f"There is a setting {name}, and none called JOBQUEUE: jobqueue does not read it.",
                'Rename it to JOBQUEUE. If another package reads it, add "jobqueue.W036" to SILENCED_SYSTEM_CHECKS.',
            )


def _redis_problems(found: conf.Settings) -> Iterator[Problem]:
    given = {"JOBQUEUE['WAKEUP']": found.wakeup, "JOBQUEUE['REDIS_URL']": found.redis_url}
    used = {name: place for name, place in given.items() if place not in ("auto", "off", None)}
    if used and find_spec("redis") is None:
        text = (
            f"{' and '.join(used)} needs Redis, but redis-py is not installed: workers get no wake-ups, "
            "so they only poll, and redis_lock() fails."
        )
        yield Problem("E004", text, "Run: pip install redis")
    for name, place in used.items():
        try:
            find_server(str(place), name)
        except WrongSettings as error:
            yield Problem("E006", str(error), "See docs/reference/settings.md#a-server-from-caches.")


@_check
def check_tasks(found: conf.Settings) -> Iterator[Problem]:
    """W028 no backend in TASKS is ours, so tasks do not become jobs; E021 a wrong value in an entry of ours; E022 the
    retry policy of a task cannot work with the settings.
    """
    if (problem := unused_problem()) is not None:
        yield problem
    else:
        yield from [*entry_problems(), *policy_problems(found)]


@_check
def check_schedules(found: conf.Settings) -> Iterator[Problem]:
    """E008 a schedule of SCHEDULES cannot be declared, W040 one ticks while its last job holds its dedupe key."""
    yield from check_problems(found)


@_check
def check_options(found: conf.Settings) -> Iterator[Problem]:
    """W010 SQLite without IMMEDIATE transactions, W011 SQLite without a write-ahead log."""
    yield from options_problems(found.database, settings.DATABASES.get(found.database, {}))


def check_database(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: object
) -> list[checks.CheckMessage]:
    """The checks that ask the server, for the queue's database only: I010, E01x and W02x."""
    alias = _conf().database
    if alias not in (databases or ()):
        return []
    try:
        with time_limit(READ_SECONDS, using=alias):
            return messages(server_problems(alias))
    except (Error, StatementTimeout) as error:
        return [checks.Warning(f"The queue's database {alias!r} could not be checked: {error}", id="jobqueue.W020")]


@_check
def check_task_modules(found: conf.Settings) -> Iterator[Problem]:
    """W030 workers do not import the module of a task."""
    yield from (Problem("W030", text, hint) for text, hint in unfindable())


@_check
def check_causes(found: conf.Settings) -> Iterator[Problem]:
    """E007 a rule for a cause names no exception class."""
    rules = {"JOBQUEUE: CAUSES": found.causes}
    rules |= {f"causes of {task}": causes for task, causes in having("causes").items()}
    for where, path in ((where, path) for where, paths in rules.items() for path in paths):
        if text := missing_class(path):
            yield Problem("E007", f"{where}: {path!r}: {text}.", "The rule would never apply. Correct the path.")


@_check
def check_middleware(found: conf.Settings) -> Iterator[Problem]:
    """E023 a class of MIDDLEWARE cannot be used, E024 one with run() only makes coroutine tasks fail, W041 a batch
    handler runs without middleware.
    """
    try:
        lacking = chain().without_arun
    except WrongSettings as error:
        yield Problem("E023", str(error), "See docs/howto/middleware.md.")
        return
    coroutines = [task.module_path for task in all_tasks() if iscoroutinefunction(task.func)]
    if lacking and coroutines:
        yield Problem(
            "E024",
            f"JOBQUEUE: MIDDLEWARE: {lacking[0]!r} has run() but no arun(), and {coroutines[0]} is a coroutine: its "
            "jobs fail.",
            "Add arun() to the class; it does nothing else if it only awaits next().",
        )
    batches = [queue for queue in registry.names()[1] if (one := registry.find_handler(queue)) and one.batch]
    if chain().run and batches:
        yield Problem(
            "W041",
            f"The @handler of {batches[0]!r} takes batches, and no run() of MIDDLEWARE is called around a batch.",
            "Read what it needs from the options of each lease, or use a handler of single jobs.",
        )


@_check
def check_nesting(found: conf.Settings) -> Iterator[Problem]:
    """W031 a library repeats the calls of a task, W032 a task names a dependency that has no settings."""
    yield from nesting_problems(found)


def _conf() -> conf.Settings:
    return conf.read(getattr(settings, "JOBQUEUE", {}))[0]


def server_problems(alias: str) -> Iterator[Problem]:
    """The problems of the database `alias` that check_database() reports."""
    connection, found = connections[alias], vendor(alias)
    if not found.supported:
        yield Problem(
            "E010",
            f"{connection.vendor} cannot hold the queue: it is not known that claims are safe on it.",
            f"Use {supported()}.",
        )
        return
    server = found.describe(connection)
    yield Problem("I010", f"The queue's database {alias!r} is {server}; workers claim by {found.claim_form}.", "")
    others = packet_problem(connection, _conf()), pool_problem(connection)
    yield from [*problems(alias), *filter(None, others)]
    skew = abs((read_now(alias) - datetime.now(UTC)).total_seconds())
    if skew > SKEW_SECONDS:
        yield Problem(
            "W024",
            f"The clocks of this host and of the database server {alias!r} differ by {skew:.0f} s.",
            "Leases and due times use the database's clock and are not affected; times in logs will differ.",
        )


def problems(alias: str) -> list[Problem]:
    """The problems of the server, the session, the indexes and the ids of `alias`."""
    found = [*vendor(alias).problems(connections[alias], Job._meta.db_table)]
    return [*found, *_missing_indexes(alias), *_id_range(alias)] if _has_table(alias) else found


def packet_problem(connection: BaseDatabaseWrapper, settings: conf.Settings) -> Problem | None:
    """The problem if the longest payload or result cannot be sent to the server."""
    limit = vendor(connection.alias).max_statement_bytes(connection)
    sizes = {"MAX_PAYLOAD_BYTES": settings.max_payload_bytes, "MAX_RESULT_BYTES": settings.max_result_bytes}
    name = max(sizes, key=sizes.__getitem__)
    # JSON that consists of quotes is twice as long when it is sent.
    needed = 2 * sizes[name] + _STATEMENT_BYTES
    if limit is None or limit >= needed:
        return None
    return Problem(
        "W027",
        f"max_allowed_packet is {limit}: a statement with {name} = {sizes[name]} bytes can be longer, and the server "
        "closes the connection then. Such a job is not enqueued, or ends FAILED although its work is done.",
        f"SET GLOBAL max_allowed_packet = {needed} (and in the server's configuration), or lower JOBQUEUE['{name}'].",
    )


def _missing_indexes(alias: str) -> Iterator[Problem]:
    connection, table = connections[alias], Job._meta.db_table
    with connection.cursor() as cursor:
        present = connection.introspection.get_constraints(cursor, table)
    wanted = {index.name for index in Job._meta.indexes} | {"uq_queue_dedupe"}
    for name in sorted(wanted - set(present)):
        yield Problem(
            "E012",
            f"The index {name} is missing on {table}: claims would read and lock far more rows than they take.",
            "It was dropped; create it again as docs/reference/sql.md shows.",
        )
    if not vendor(alias).indexes_end_with_key and "ix_dead" not in present:
        yield Problem(
            "W033",
            f"The index ix_dead is missing on {table}: a redrive reads every job between two dead letters.",
            "It was dropped, or not made (pytest --nomigrations). Make it again: `manage.py sqlmigrate jobqueue 0001` "
            "prints the statement.",
        )


def _id_range(alias: str) -> Iterator[Problem]:
    table = Job._meta.db_table
    following = vendor(alias).next_id(connections[alias], table)
    hint = "The table's counter was raised by hand; set it back, see docs/reference/checks.md."
    if following > ID_MAX:
        text = f"The next id of {table} is {following}, above {ID_MAX}: such jobs can be neither renewed nor acked."
        yield Problem("E014", text, hint)
    elif following > _NEAR:
        text = f"The next id of {table} is {following}; jobs above {ID_MAX} can be neither renewed nor acked."
        yield Problem("W026", text, hint)


def _has_table(alias: str) -> bool:
    with connections[alias].cursor() as cursor:
        return Job._meta.db_table in connections[alias].introspection.table_names(cursor)


def check_tables(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: object
) -> list[checks.CheckMessage]:
    """W021 the tables do not exist, or a migration of jobqueue was not run."""
    alias = _conf().database
    if alias not in (databases or ()) or _is_migrating():
        return []
    try:
        with time_limit(READ_SECONDS, using=alias):
            missing = pending_migrations(alias) if _has_table(alias) else [f"the table {Job._meta.db_table}"]
    except (Error, StatementTimeout, BadMigrationError, NodeNotFoundError):
        # check_database() reports an error as W020, and migrate reports broken migrations.
        return []
    if not missing:
        return []
    text = f"The database {alias!r} lacks {', '.join(missing)}: migrations of jobqueue were not run on it."
    return messages([Problem("W021", text, f"Run: python manage.py migrate --database {alias}")])


def pending_migrations(using: str) -> list[str]:
    """The migrations of jobqueue that were not run on `using`."""
    executor = MigrationExecutor(connections[using])
    targets = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "jobqueue"]
    return [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(targets)]


def _is_migrating() -> bool:
    """Return whether `migrate` runs the checks: it does so before it makes the tables."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        kinds = type(frame.f_locals.get("self")).__mro__
        if any(kind.__module__ == "django.core.management.commands.migrate" for kind in kinds):
            return True
        frame = frame.f_back
    return False
