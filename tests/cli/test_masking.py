"""Secrets are in no output of a command."""

from datetime import UTC, datetime
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import OutputWrapper

from jobqueue.cli.output import Result, show
from jobqueue.models import Job
from jobqueue.transitions import fail
from tests.app import tasks
from tests.cli.helpers import printed
from tests.factories import claim_one, make_job, set_columns

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


def shown(result, **given):
    """What is printed of a result."""
    out = StringIO()
    assert show(result, OutputWrapper(out), {"json": False, "verbosity": 1} | given) == result.status
    return out.getvalue()


def test_every_line_and_every_value_of_a_document_is_masked_and_no_line_is_forged():
    document = {"at": datetime(2026, 1, 31, tzinfo=UTC), "of": ({"it": "token=hunter2zz"},)}
    made = Result(document, ["a\nb token=hunter2zz"], 5)
    assert shown(made) == "a\\nb token=********\n"
    masked = '"of": [{"it": "token=********"}]'
    assert shown(made, json=True) == f'{{"version": 1, "at": "2026-01-31T00:00:00.000+00:00", {masked}}}\n'
    assert shown(made, verbosity=0) == ""


def test_a_script_is_printed_as_it_is_at_any_verbosity():
    script = "[if these pass]:N:\n  x"
    assert shown(Result({"script": script}, [script], is_script=True), verbosity=0) == f"{script}\n"


def test_a_dry_run_of_a_worker_masks_the_names_of_tasks():
    set_columns(make_job(), task="token=hunter2zz")
    out = StringIO()
    call_command("runworker", "--dry-run", stdout=out)
    assert "token=********" in out.getvalue()
