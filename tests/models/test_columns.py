"""Names and types that programs in other languages rely on."""

import pytest
from django.core.management import call_command
from django.db import connection

from jobqueue.models import Job
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db
mysql_family = pytest.mark.skipif(
    VENDOR not in ("mysql", "mariadb"), reason="the contract fixes types on MySQL and MariaDB"
)

TYPES = {
    "id": "bigint unsigned",
    "queue": "varchar(64)",
    "status": "tinyint",
    "priority": "int",
    "run_at": "datetime(6)",
    "attempts": "int",
    "max_attempts": "int",
    "payload": "json",
    "result": "json",
    "last_error": "text",
    "locked_by": "varchar(128)",
    "lock_token": "binary(16)",
    "locked_at": "datetime(6)",
    "lock_until": "datetime(6)",
    "dedupe_key": "varbinary(64)",
    "created_at": "datetime(6)",
    "updated_at": "datetime(6)",
    "finished_at": "datetime(6)",
    "task": "varchar(255)",
    "fence": "bigint",
    "gate": "tinyint",
}
NULLABLE = {
    "result",
    "last_error",
    "locked_by",
    "lock_token",
    "locked_at",
    "lock_until",
    "dedupe_key",
    "finished_at",
    "task",
    "wait_reason",
}
INDEXES = {"uq_queue_dedupe": ["queue", "dedupe_key"], "ix_pick": None, "ix_lease": None, "ix_worker": None}


@pytest.fixture
def columns(sql):
    """information_schema.columns of job_queue: name -> row."""
    rows = sql(
        "SELECT column_name, column_type, is_nullable, column_default, extra, collation_name "
        "FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND table_name = 'job_queue'"
    )
    return {row[0]: row[1:] for row in rows}


def plain(kind):
    """A type as MySQL 8 and later print it: MariaDB still shows display widths, and keeps JSON as LONGTEXT."""
    kind = kind.lower()
    for width in ("bigint(20) unsigned", "bigint(20)", "int(11)", "tinyint(4)", "tinyint(1)"):
        if kind == width:
            kind = width.split("(")[0] + width.partition(")")[2]
    return "json" if kind == "longtext" else kind


@mysql_family
@pytest.mark.parametrize("name", TYPES)
def test_a_column_has_the_contracts_type(columns, name):
    assert plain(columns[name][0]) == TYPES[name]


@mysql_family
def test_the_reason_for_waiting_is_a_varchar(columns):
    assert columns["wait_reason"][0].startswith("varchar(")


@mysql_family
def test_the_id_counts_by_itself(columns):
    assert "auto_increment" in columns["id"][3].lower()


@mysql_family
def test_exactly_the_contracts_columns_may_be_null(columns):
    for name in [*TYPES, "wait_reason"]:
        assert (columns[name][1] == "YES") is (name in NULLABLE), name


@mysql_family
def test_no_column_is_written_by_the_server_in_its_own_zone(columns):
    assert not [name for name, column in columns.items() if "on update" in column[3].lower()]


@mysql_family
@pytest.mark.parametrize("name", ["queue", "locked_by", "task"])
def test_names_have_a_binary_collation_without_padding(columns, name):
    collation = columns[name][4]
    assert collation.endswith("bin")
    assert "nopad" in collation or "0900" in collation


@mysql_family
def test_the_table_is_innodb_with_utf8mb4(sql):
    engine, collation = sql(
        "SELECT engine, table_collation FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_name = 'job_queue'"
    )[0]
    assert engine == "InnoDB"
    assert collation.startswith("utf8mb4")


def test_every_column_that_plain_sql_may_leave_out_has_a_default_or_may_be_null():
    needed = {"id", "queue", "payload", "status", "priority", "run_at", "dedupe_key"}
    for field in Job._meta.concrete_fields:
        assert field.column in needed or field.null or field.has_db_default(), field.column


def test_the_contracts_indexes_have_their_names():
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, "job_queue")
    for name, fields in INDEXES.items():
        assert name in found
        assert fields is None or found[name]["columns"] == fields
    assert found["uq_queue_dedupe"]["unique"]
    assert found["ix_pick"]["columns"][:2] == ["queue", "status"]


def test_the_table_and_every_contract_column_exist_on_every_database():
    with connection.cursor() as cursor:
        found = {column.name for column in connection.introspection.get_table_description(cursor, "job_queue")}
    assert found >= {*TYPES, "wait_reason"}


def test_the_states_have_the_contracts_numbers():
    assert {status.name: status.value for status in Job.Status} == {
        "READY": 0,
        "PROCESSING": 1,
        "DONE": 2,
        "FAILED": 3,
        "CANCELED": 4,
    }


def test_no_migration_is_missing():
    call_command("makemigrations", "jobqueue", check=True, dry_run=True, verbosity=0)
