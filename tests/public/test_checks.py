"""Every system check speaks up when it should, and only then."""

import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.core.checks import INFO, Error, Warning
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import override_settings

from jobqueue import backends, checks
from jobqueue.base.compat import task_backends, tasks
from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.dialect import Dialect
from jobqueue.models import Job
from jobqueue.worker.monitor.preflight import MISCONFIGURED, preflight
from jobqueue.worker.shared.queue_choice import Selection
from jobqueue.worker.shared.worker_options import Options
from tests.marks import committed, finding
from tests.settings import VENDOR


def ids(messages):
    return sorted(message.id.removeprefix("jobqueue.") for message in messages)


def wrong(databases=("default",)):
    """What the checks of the database find wrong; what they find besides is an information."""
    return [found for found in checks.check_database(databases=databases) if found.level > INFO]


def look():
    return ids(wrong())


@pytest.mark.parametrize(
    ("value", "expected", "words"),
    [
        ({}, [], ""),
        ({"LEASE_SECONDS": 30, "HEARTBEAT_SECONDS": 5, "QUEUES": {"mail": {"MAX_ATTEMPTS": 3}}}, [], ""),
        ({"DEDUPE_SECONDS": None, "HEARTBEAT_SECONDS": None}, [], ""),
        ({"LEASE": 5}, ["E001"], "unknown key 'LEASE'"),
        ({5: 5}, ["E001"], "unknown key 5"),
        ([], ["E001"], "must be a dict"),
        (None, ["E001"], "must be a dict"),
        ({"LEASE_SECONDS": 0}, ["E001"], "LEASE_SECONDS"),
        ({"LEASE_SECONDS": -1}, ["E001"], "LEASE_SECONDS"),
        ({"LEASE_SECONDS": float("nan")}, ["E001"], "LEASE_SECONDS"),
        ({"LEASE_SECONDS": float("inf")}, ["E001"], "LEASE_SECONDS"),
        ({"LEASE_SECONDS": "60"}, ["E001"], "LEASE_SECONDS"),
        ({"LEASE_SECONDS": True}, ["E001"], "LEASE_SECONDS"),
        ({"MAX_ATTEMPTS": 0}, ["E001"], "MAX_ATTEMPTS"),
        ({"MAX_ATTEMPTS": 1.5}, ["E001"], "MAX_ATTEMPTS"),
        ({"MAX_ATTEMPTS": 2**31}, ["E001"], "MAX_ATTEMPTS"),
        ({"DATABASE": ""}, ["E001"], "DATABASE"),
        ({"WAKEUP": "redis://127.0.0.1"}, [], ""),
        ({"WAKEUP": "rabbit"}, ["E001"], "WAKEUP"),
        ({"WAKEUP": None}, ["E001"], "WAKEUP"),
        ({"QUEUES": []}, ["E001"], "QUEUES"),
        ({"QUEUES": {"a": 5}}, ["E001"], "QUEUES['a']"),
        ({"QUEUES": {"a,b": {}}}, ["E001"], "'a,b'"),
        ({"QUEUES": {"": {}}}, ["E001"], "QUEUES"),
        ({"QUEUES": {"a": {"LEASE": 5}}}, ["E001"], "unknown key 'LEASE'"),
        ({"QUEUES": {"a": {"LEASE_SECONDS": 0}}}, ["E001"], "QUEUES['a']"),
        ({"LEASE": 1, "MAX_ATTEMPTS": 0}, ["E001", "E001"], "LEASE"),
        ({"DATABASE": "elsewhere"}, ["E002"], "'elsewhere' is not in DATABASES"),
        ({"LEASE_SECONDS": 30, "HEARTBEAT_SECONDS": 10}, ["E003"], "must exceed 3 x"),
    ],
    ids=str,
)
def test_settings(value, expected, words):
    with override_settings(JOBQUEUE=value):
        found = checks.check_settings()
    assert ids(found) == expected
    assert not expected or words in found[0].msg
    assert all(isinstance(message, Error) and message.hint for message in found)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"WAKEUP": "redis://h"}, ["E004"]),
        ({"WAKEUP": "auto"}, []),
        ({"WAKEUP": "off"}, []),
        ({"REDIS_URL": "redis://h"}, ["E004"]),
        ({"REDIS_URL": None}, []),
    ],
)
def test_a_redis_url_needs_redis_py(settings, monkeypatch, setting, expected):
    monkeypatch.setitem(sys.modules, "redis", None)
    settings.JOBQUEUE = setting
    assert ids(checks.check_settings()) == expected


def test_one_wrong_setting_does_not_hide_the_others():
    routes = {"a": "redsi://h", "b": {"URL": "amqp://h", "QUEU": "x"}, "c": 5, "d": "queue:", "e": "subscribers"}
    wrong = {
        "LEASE_SECOND": 5,
        "MAX_ATTEMPTS": 0,
        "DATABASE": "elsewhere",
        "ROUTES": {},
        "QUEUES": {"a": {"LEASE": 5, "MAX_ATTEMPTS": 0}, "b,c": {}},
        "OUTBOX": {"ROUTE": {}, "BATCH_SIZE": 0, "ROUTES": routes},
    }
    with override_settings(JOBQUEUE=wrong):
        found = checks.check_settings()
    assert ids(found) == ["E001"] * 10 + ["E002", "E005", "E005"]
    said = "\n".join(message.msg for message in found)
    for words in (
        "unknown key 'LEASE_SECOND' (did you mean 'LEASE_SECONDS'?)",
        "unknown key 'ROUTES' (it belongs in OUTBOX)",
        "QUEUES['a']: unknown key 'LEASE' (did you mean 'LEASE_SECONDS'?)",
        "OUTBOX: unknown key 'ROUTE' (did you mean 'ROUTES'?)",
        "['a']: no broker is known for redsi:// (did you mean 'redis'?)",
        "['b']: unknown option 'QUEU' (did you mean 'QUEUE'?)",
    ):
        assert words in said


def test_a_value_is_not_compared_with_the_default_of_a_wrong_one():
    with override_settings(JOBQUEUE={"LEASE_SECONDS": "600", "HEARTBEAT_SECONDS": 100}):
        assert ids(checks.check_settings()) == ["E001"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://h", []), ("REDIS://h", []), ("sqs://", []), ("memory://", []), ("subscribers", []), ("queue:q", []),
        ("redis-stream://h", []), ("redis-streams://h", ["E005"]),
        ("mailto://x", ["E005"]), ("http://user:secret@h", ["E005"]), ("amqpp://h", ["E005"]),
    ],
)  # fmt: skip
def test_e005_a_route_with_an_unknown_scheme(url, expected):
    pytest.importorskip("kombu")
    with override_settings(JOBQUEUE={"OUTBOX": {"ROUTES": {"t": url}}}):
        found = checks.check_settings()
    assert ids(found) == expected
    assert "secret" not in str(found)


def test_e005_a_route_that_urllib_cannot_read_is_told_without_its_password():
    pytest.importorskip("confluent_kafka")
    with override_settings(JOBQUEUE={"OUTBOX": {"ROUTES": {"t": "kafka://user:secret[x@host:9092"}}}):
        (found,) = checks.check_settings()
    assert found.id == "jobqueue.E005"
    assert "JOBQUEUE['OUTBOX']['ROUTES']['t'] is not a URL that can be read" in found.msg
    assert "secret" not in str(found)


def test_a_broker_that_is_not_installed_here_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "kombu", None)
    with override_settings(JOBQUEUE={"OUTBOX": {"ROUTES": {"t": "amqp://h", "u": "amqpp://h"}}}):
        assert ids(checks.check_settings()) == ["E005", "W029"]


OURS = {"BACKEND": "jobqueue.backends.JobQueueBackend"}
IMMEDIATE = {"BACKEND": f"{tasks.__name__}.backends.immediate.ImmediateBackend"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"default": OURS}, None),
        ({"default": IMMEDIATE, "jobs": OURS}, None),
        ({}, "TASKS is not set"),
        ({"default": IMMEDIATE}, f"no backend in TASKS is jobqueue's (default: {IMMEDIATE['BACKEND']})"),
        ({"default": {"BACKEND": "jobqueue.backends.JobqueueBackend"}}, "did you mean 'jobqueue.backends.JobQueueB"),
    ],
)
def test_w028_tasks_that_do_not_become_jobs(settings, value, words):
    settings.TASKS = value
    found = checks.check_tasks()
    assert ids(found) == ([] if words is None else ["W028"])
    assert words is None or (words in found[0].msg and OURS["BACKEND"] in found[0].hint)


def test_w028_says_that_tasks_is_not_set_where_django_has_a_default_for_it(monkeypatch):
    default = SimpleNamespace(TASKS={"default": IMMEDIATE}, is_overridden=lambda name: name != "TASKS")
    monkeypatch.setattr("jobqueue.tasks.checks.settings", default)
    assert "TASKS is not set" in checks.check_tasks()[0].msg


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, None),
        ({"QUEUES": ["mail"], "OPTIONS": {"DATABASE": "default"}}, None),
        ({"OPTIONS": {"DATABASE": "elsewhere"}}, "['OPTIONS']['DATABASE'] = 'elsewhere' is not in DATABASES"),
        ({"OPTIONS": {"DATABSE": "default"}}, "unknown key 'DATABSE' (did you mean 'DATABASE'?)"),
        (
            {"DATABASE": "default"},
            "['default'] has the unknown key 'DATABASE' (it belongs in TASKS['default']['OPTIONS'])",
        ),
        ({"QUEUE": ["mail"]}, "['default'] has the unknown key 'QUEUE' (did you mean 'QUEUES'?)"),
        ({"QUEUES": "mail"}, "['QUEUES'] must be a list of names, is 'mail'"),
        ({"QUEUES": ["mail", "a,b"]}, "queue 'a,b' may not"),
    ],
)
def test_e021_a_wrong_value_in_our_entry_of_tasks(settings, params, words):
    settings.TASKS = {"default": OURS | params}
    found = checks.check_tasks()
    assert ids(found) == ([] if words is None else ["E021"])
    assert words is None or words in found[0].msg


def test_a_subclass_of_our_backend_may_have_keys_of_its_own(settings):
    settings.TASKS = {"default": {"BACKEND": f"{__name__}.Subclass", "REGION": "eu", "OPTIONS": {"SHARD": 3}}}
    assert checks.check_tasks() == []


class Subclass(backends.JobQueueBackend):
    """A backend of a project."""


@pytest.mark.parametrize("name", ["JOBQUE", "JOB_QUEUE", "JOBQUEUES", "JOBQEUE"])
def test_w036_a_misspelt_setting_is_told(settings, name):
    setattr(settings, name, {"MAX_ATTEMPTS": 3})
    (found,) = checks.check_settings()
    assert (ids([found]), found.msg.partition(",")[0]) == (["W036"], f"There is a setting {name}")
    settings.JOBQUEUE = {}
    assert checks.check_settings() == []


@pytest.mark.parametrize(
    ("name", "value"), [("JOB_QUEUE", "redis://h"), ("JOBS", {}), ("QUEUES", {}), ("Jobqueue", {})]
)
def test_a_setting_that_is_no_dict_or_has_another_name_is_not_taken_for_ours(settings, name, value):
    setattr(settings, name, value)
    assert checks.check_settings() == []


def test_e020_is_told_by_our_own_check_if_django_tasks_has_none(monkeypatch):
    assert backends.check_installed() == []
    monkeypatch.setattr(apps, "is_installed", lambda name: False)
    monkeypatch.setattr(backends.registered, "registered_checks", set())
    task_backends["default"]
    assert [message.id for message in backends.check_installed()] == ["jobqueue.E020"]


WAL = "PRAGMA journal_mode=WAL"


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("/x/db", {"transaction_mode": "IMMEDIATE", "init_command": WAL}, []),
        ("/x/db", {"transaction_mode": "exclusive", "init_command": WAL.lower()}, []),
        ("/x/db", {"init_command": WAL}, ["W010"]),
        ("/x/db", {"transaction_mode": "DEFERRED", "init_command": WAL}, ["W010"]),
        ("/x/db", {"transaction_mode": "IMMEDIATE"}, ["W011"]),
        ("/x/db", None, ["W010", "W011"]),
        (":memory:", None, []),
    ],
)
def test_sqlite_options(settings, monkeypatch, name, options, expected):
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    monkeypatch.setitem(settings.DATABASES, "files", entry)
    settings.JOBQUEUE = {"DATABASE": "files"}
    found = checks.check_options()
    assert ids(found) == expected
    assert all(isinstance(message, Warning) and message.hint for message in found)


def test_sqlite_options_of_another_database_do_not_matter(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES, "files", {"ENGINE": "django.db.backends.postgresql", "NAME": "x"})
    settings.JOBQUEUE = {"DATABASE": "files"}
    assert checks.check_options() == []


@pytest.mark.django_db
def test_a_good_database_is_clean():
    assert look() == []


@pytest.mark.parametrize("databases", [None, [], ["other"]])
def test_no_database_is_touched_unless_it_is_asked_for(databases):
    assert checks.check_database(databases=databases) == []


@pytest.mark.django_db
def test_e010_a_database_that_cannot_hold_the_queue(monkeypatch):
    monkeypatch.setattr(checks, "vendor", lambda alias: Dialect())
    (found,) = wrong()
    assert found.id == "jobqueue.E010"
    assert "MySQL 8.0.17+" in found.hint


@pytest.mark.django_db
def test_e011_an_old_server(monkeypatch, vendor_name):
    if vendor_name == "postgres":
        pytest.skip("Django itself refuses older servers")
    monkeypatch.setattr(type(vendor("default")), "oldest", (99, 0, 0))
    (found,) = wrong()
    assert found.id == "jobqueue.E011"
    assert "is older than 99.0.0" in found.msg


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["ix_pick", "ix_lease", "ix_worker"])
def test_e012_a_missing_index(name):
    index = next(index for index in Job._meta.indexes if index.name == name)
    with connection.schema_editor() as editor:
        editor.remove_index(Job, index)
    try:
        (found,) = wrong()
    finally:
        with connection.schema_editor() as editor:
            editor.add_index(Job, index)
    assert found.id == "jobqueue.E012"
    assert name in found.msg
    assert look() == []


@pytest.mark.django_db(transaction=True)
def test_w033_the_missing_index_of_dead_letters(vendor_name):
    if vendor_name != "postgres":
        pytest.skip("only PostgreSQL has it")
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX ix_dead")
        try:
            assert look() == ["W033"]
        finally:
            cursor.execute("CREATE INDEX ix_dead ON job_queue (id) WHERE (status + 0) = 3")
    assert look() == []


@pytest.mark.django_db(transaction=True)
def test_e012_the_missing_unique_key(vendor_name):
    if vendor_name == "sqlite":
        pytest.skip("SQLite cannot drop a constraint without making the table anew")
    (constraint,) = [c for c in Job._meta.constraints if c.name == "uq_queue_dedupe"]
    with connection.schema_editor() as editor:
        editor.remove_constraint(Job, constraint)
    try:
        assert look() == ["E012"]
    finally:
        with connection.schema_editor() as editor:
            editor.add_constraint(Job, constraint)
    assert look() == []


@pytest.mark.django_db(transaction=True)
def test_e013_a_table_without_transactions(vendor_name, sql):
    if vendor_name not in ("mysql", "mariadb"):
        pytest.skip("only MySQL has storage engines")
    sql("ALTER TABLE job_queue ENGINE=MyISAM")
    try:
        (found,) = wrong()
    finally:
        sql("ALTER TABLE job_queue ENGINE=InnoDB")
    assert found.id == "jobqueue.E013"
    assert "MyISAM" in found.msg
    assert look() == []


@pytest.mark.django_db
def test_w020_a_database_that_cannot_be_reached(monkeypatch):
    def refuse(alias):
        raise OperationalError("connection refused")

    monkeypatch.setattr(checks, "read_now", refuse)
    (found,) = wrong()
    assert found.id == "jobqueue.W020"
    assert "connection refused" in found.msg


@pytest.mark.django_db
def test_w021_no_table(monkeypatch):
    monkeypatch.setattr(Job._meta, "db_table", "job_queue_of_nobody")
    (found,) = checks.check_tables(databases=["default"])
    assert found.id == "jobqueue.W021"
    assert "migrate --database default" in found.hint


@pytest.mark.django_db
def test_w021_is_told_without_deploy_but_not_by_migrate(monkeypatch, capsys):
    MigrationRecorder(connection).record_unapplied("jobqueue", "0001_initial")
    assert "lacks jobqueue.0001_initial" in checks.check_tables(databases=["default"])[0].msg
    call_command("check", "--database", "default")
    assert "(jobqueue.W021)" in capsys.readouterr().err
    call_command("migrate", "--plan", "--database", "default", skip_checks=False)
    assert "W021" not in capsys.readouterr().err


@pytest.mark.django_db(transaction=True)
def test_w022_sessions_with_another_isolation_level(vendor_name, sql):
    if vendor_name == "sqlite":
        pytest.skip("SQLite has one isolation level")
    words = "CHARACTERISTICS AS TRANSACTION" if vendor_name == "postgres" else "TRANSACTION"
    sql(f"SET SESSION {words} ISOLATION LEVEL REPEATABLE READ")
    try:
        (found,) = wrong()
    finally:
        sql(f"SET SESSION {words} ISOLATION LEVEL READ COMMITTED")
    assert found.id == "jobqueue.W022"
    assert "repeatable" in found.msg.lower()
    assert look() == []


@pytest.mark.django_db(transaction=True)
def test_w023_statement_based_replication(vendor_name, sql):
    if vendor_name not in ("mysql", "mariadb"):
        pytest.skip("only MySQL replicates statements")
    variables = dict(sql("SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')"))
    if variables.get("log_bin") != "ON":
        pytest.skip("this server writes no binary log")
    sql("SET SESSION binlog_format = 'STATEMENT'")
    try:
        assert look() == ["W023"]
    finally:
        sql(f"SET SESSION binlog_format = '{variables['binlog_format']}'")


@pytest.mark.django_db
@pytest.mark.parametrize(("seconds", "expected"), [(-3600, ["W024"]), (60, ["W024"]), (1, []), (-1, [])])
def test_w024_clocks_that_differ(monkeypatch, seconds, expected):
    monkeypatch.setattr(checks, "read_now", lambda alias: read_now(alias) + timedelta(seconds=seconds))
    assert look() == expected


def test_every_id_is_registered_to_run():
    from django.core.checks import registry

    registered = registry.registry.registered_checks
    assert {checks.check_settings, checks.check_options, checks.check_database} <= set(registered)


@finding("item-3")
def test_the_server_and_the_form_of_a_claim_are_named(db, capsys):
    """As an information: it is printed, and fails nothing."""
    (found,) = (one for one in checks.check_database(databases=["default"]) if one.level == INFO)
    name, form = {
        "mysql": ("MySQL", "SKIP LOCKED"),
        "mariadb": ("MariaDB", "SKIP LOCKED"),
        "postgres": ("PostgreSQL", "UPDATE .. RETURNING"),
        "sqlite": ("SQLite", "BEGIN IMMEDIATE"),
    }[VENDOR]
    version = ".".join(map(str, connection.get_database_version()))
    assert found.id == "jobqueue.I010"
    assert f"'default' is {name} {version}" in found.msg
    assert form in found.msg
    call_command("check", "--database", "default")
    assert "(jobqueue.I010)" in capsys.readouterr().err


COUNTER = "ALTER TABLE job_queue AUTO_INCREMENT = {}"


@committed
@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="elsewhere ids end there")
@pytest.mark.parametrize(
    ("following", "wanted"),
    [
        pytest.param(2**63 + 1, ["E014"], marks=finding("A16")),
        pytest.param(2**63, ["E014"], marks=finding("A16")),
        pytest.param(2**63 - 1, ["W026"], marks=finding("A16")),
        pytest.param(9 * 10**18, ["W026"], marks=finding("A16")),
        (10**18, []),
    ],
)
def test_ids_that_programs_cannot_count_to_are_told_of_before_they_come(following, wanted, sql):
    try:
        sql(COUNTER.format(following))
        assert [code for code in look() if code in ("E014", "W026")] == wanted
        assert (preflight(Options(selection=Selection(), database="default")) == MISCONFIGURED) == (wanted == ["E014"])
    finally:
        sql(COUNTER.format(1))
