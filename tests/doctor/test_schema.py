"""What the doctor says of migrations, tables, indexes and the plan of a claim."""

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from jobqueue import enqueue_many
from jobqueue.doctor import Level
from jobqueue.doctor.tables import plan_of
from jobqueue.models import Job, OutboxEvent, Worker
from tests.doctor.helpers import add_worker, found, ids, the
from tests.marks import committed
from tests.plans.conftest import backlog  # noqa: F401
from tests.settings import VENDOR

INNODB = VENDOR in ("mysql", "mariadb")


@pytest.fixture
def without_index(transactional_db):
    """without_index(model, name): drop an index or a unique constraint; the test's end makes it again."""
    dropped = []

    def drop(model, name):
        (index,) = [one for one in [*model._meta.indexes, *model._meta.constraints] if one.name == name]
        kind = "index" if index in model._meta.indexes else "constraint"
        with connection.schema_editor() as editor:
            getattr(editor, f"remove_{kind}")(model, index)
        dropped.append((model, index, kind))

    yield drop
    for model, index, kind in dropped:
        with connection.schema_editor() as editor:
            getattr(editor, f"add_{kind}")(model, index)


@committed
@pytest.mark.parametrize("name", ["ix_pick", "ix_lease", "ix_worker", "uq_queue_dedupe"])
def test_an_index_of_the_job_table_that_somebody_has_dropped_is_an_error(without_index, name):
    if (VENDOR, name) == ("sqlite", "uq_queue_dedupe"):
        pytest.skip("SQLite cannot drop a constraint without making the table anew")
    add_worker()
    without_index(Job, name)
    one = the("index_missing")
    assert (one.level, one.evidence["index"], one.evidence["table"]) == (Level.ERROR, name, "job_queue")
    assert "jobqueue.E012" not in ids()


@committed
def test_an_index_of_another_table_is_a_warning(without_index):
    add_worker()
    without_index(Worker, "ix_worker_alive")
    assert [(one.level, one.id) for one in found()] == [(Level.WARNING, "index_missing")]


@committed
def test_an_index_of_the_right_name_with_other_columns_is_an_error(without_index):
    add_worker()
    without_index(Job, "ix_pick")
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX ix_pick ON job_queue (queue, status, run_at)")
    try:
        one = the("index_differs")
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP INDEX ix_pick{' ON job_queue' if INNODB else ''}")
    assert one.level is Level.ERROR
    assert one.evidence["found"] == ["queue", "status", "run_at"]
    assert one.evidence["columns"] == ["queue", "status", "gate", "priority", "run_at", "id"]


HIDE = {
    "mysql": "ALTER TABLE job_queue ALTER INDEX ix_lease {}VISIBLE",
    "mariadb": "ALTER TABLE job_queue ALTER INDEX ix_lease {}IGNORED",
    "postgres": "UPDATE pg_index SET indisvalid = {} WHERE indexrelid = 'ix_lease'::regclass",
}
HIDDEN = {"mysql": ("IN", ""), "mariadb": ("", "NOT "), "postgres": ("false", "true")}


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite cannot hide an index")
def test_an_index_that_is_hidden_from_the_planner_counts_as_missing(sql):
    add_worker()
    hide, show = (HIDE[VENDOR].format(word) for word in HIDDEN[VENDOR])
    sql(hide)
    try:
        assert the("index_missing").evidence["index"] == "ix_lease"
    finally:
        sql(show)
    assert ids() == []


@committed
@pytest.mark.parametrize("model", [OutboxEvent, Job], ids=lambda model: model.__name__)
def test_a_table_that_somebody_has_dropped_is_an_error_and_the_other_checks_go_on(model):
    add_worker(version="1")
    add_worker("w2", version="2")
    table = model._meta.db_table
    with connection.schema_editor() as editor:
        editor.alter_db_table(model, table, "job_table_away")
    try:
        findings = found()
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(model, "job_table_away", table)
    assert (findings[0].id, findings[0].evidence["tables"]) == ("table_missing", [table])
    assert ("worker_versions" in [one.id for one in findings]) == (model is OutboxEvent)
    assert "check_failed" not in [one.id for one in findings] or model is OutboxEvent


@pytest.mark.django_db
def test_a_migration_that_was_not_run_is_an_error():
    add_worker()
    MigrationRecorder(connection).record_unapplied("jobqueue", "0001_initial")
    try:
        one = the("migrations_unapplied")
    finally:
        MigrationRecorder(connection).record_applied("jobqueue", "0001_initial")
    assert one.level is Level.ERROR
    assert one.evidence == {"migrations": ["jobqueue.0001_initial"]}
    assert one.fix == "Run: python manage.py migrate --database default"


@committed
def test_the_plan_of_a_claim_is_right_with_a_backlog_and_wrong_without_its_index(backlog, without_index):  # noqa: F811
    add_worker()
    assert "claim_plan" not in ids()
    assert plan_of("q", "default").uses("ix_pick")
    without_index(Job, "ix_pick")
    one = the("claim_plan")
    assert one.level is Level.ERROR
    assert one.evidence["queue"] in ("", "other", "q")
    assert one.evidence["plan"]
    assert "ANALYZE" in one.fix


@pytest.mark.django_db
def test_the_plan_of_an_empty_table_is_no_finding():
    add_worker()
    assert ids() == []


@committed
def test_the_plan_of_an_empty_table_with_a_large_file_is_no_finding(backlog):  # noqa: F811
    add_worker()
    Job.objects.all().delete()
    if VENDOR == "postgres":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE job_queue")
    assert "claim_plan" not in ids()


@committed
@pytest.mark.parametrize("jobs", [5, 3000])
def test_statistics_of_an_emptied_table_are_a_finding_if_a_claim_reads_many_jobs(backlog, jobs):  # noqa: F811
    """PostgreSQL then expects one row, and takes the shortest index that begins with the queue."""
    add_worker()
    Job.objects.all().delete()
    if VENDOR == "postgres":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE job_queue")
    enqueue_many("q", [None] * jobs)
    assert ("claim_plan" in ids()) == (VENDOR == "postgres" and jobs == 3000)
