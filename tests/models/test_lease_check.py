"""The database itself keeps lease and state together, whoever writes."""

import pytest
from django.db import IntegrityError, transaction

from jobqueue.db.clock import UtcNow
from jobqueue.models import Job
from tests.factories import claim_one, make_in_state, make_job, set_columns
from tests.marks import finding

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
