"""Secrets are in no output of a command."""

import pytest

from jobqueue.models import Job
from jobqueue.transitions import fail
from tests.app import tasks
from tests.cli.helpers import printed
from tests.factories import claim_one, set_columns

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_secret_in_any_column_of_a_job_is_not_printed(more):
    made = tasks.greet.enqueue("password=hunter2zz", 1)
    fail(claim_one("default"), error=ValueError("no: token=hunter2zz"))
    columns = {"result": {"apiKey": "hunter2zz"}, "wait_reason": "after ValueError: password=hunter2zz"}
    set_columns(made.id, progress={"done": 1, "note": "secret: hunter2zz"}, **columns)
    shown = printed("show", str(made.id), "--payload", *more)
    assert "hunter2zz" not in shown
    assert "********" in shown
    assert "hunter2zz" not in printed("list", *more)
    assert "hunter2zz" in Job.objects.get(pk=made.id).last_error
