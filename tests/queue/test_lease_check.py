"""The database itself keeps lease and state together, whoever writes."""

from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction

from jobqueue import migrations
from jobqueue.db.clock import UtcNow
from jobqueue.models import Job
from tests.factories import claim_one, job, make_in_state, make_job, row, set_columns
from tests.marks import committed, finding
from tests.settings import VENDOR

LEASE = {"locked_by": "w", "lock_token": b"0123456789abcdef", "locked_at": UtcNow(), "lock_until": UtcNow()}


def refused(job_id, **columns):
    with pytest.raises(IntegrityError), transaction.atomic():
        set_columns(job_id, **columns)


@finding("item-3")
@pytest.mark.django_db
@pytest.mark.parametrize("state", ["READY", "DONE", "FAILED", "CANCELED"])
@pytest.mark.parametrize("column", LEASE)
def test_a_row_that_nobody_holds_has_nothing_of_a_lease(state, column):
    refused(make_in_state(state), **{column: LEASE[column]})


@finding("item-3")
@pytest.mark.django_db
def test_a_held_row_has_its_time_of_claim():
    make_job()
    refused(claim_one().job_id, locked_at=None)


@pytest.mark.django_db
@pytest.mark.parametrize("column", ["locked_by", "lock_token", "lock_until"])
def test_a_held_row_has_the_rest_of_its_lease(column):
    make_job()
    refused(claim_one().job_id, **{column: None})


@pytest.mark.django_db
def test_a_row_does_not_leave_its_state_alone():
    make_job()
    refused(claim_one().job_id, status=Job.Status.READY)
    refused(make_job(), status=Job.Status.PROCESSING)


@contextmanager
def unchecked():
    """For the block the table has no ck_job_lease; what it then holds is what the migration must cope with."""
    (constraint,) = (one for one in Job._meta.constraints if one.name == "ck_job_lease")
    if VENDOR == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA ignore_check_constraints = ON")
            yield
            cursor.execute("PRAGMA ignore_check_constraints = OFF")
        return
    with connection.schema_editor() as editor:
        editor.remove_constraint(Job, constraint)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.add_constraint(Job, constraint)


@committed
def test_the_migration_tidies_rows_of_other_programs():
    (name,) = (path.stem for path in Path(migrations.__file__).parent.glob("*lease_both_ways.py"))
    migration = import_module(f"jobqueue.migrations.{name}")
    make_job()
    held, ready, whole = claim_one().job_id, make_job(), make_job("other")
    before = row(whole)
    with unchecked():
        set_columns(held, locked_at=None)
        set_columns(ready, locked_by="w", lock_token=b"0123456789abcdef")
        with connection.schema_editor() as editor:
            migration.tidy(apps, editor)
    assert job(held).locked_at is not None
    assert (job(held).status, job(held).locked_by) == (Job.Status.PROCESSING, "w")
    assert (job(ready).locked_by, job(ready).lock_token) == (None, None)
    assert row(whole) == before
