"""How far a job is: cheap to say, readable by everybody, the last word always kept."""

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.context import progress
from jobqueue.context.job_context import JobContext
from jobqueue.context.progress import Progress, read_progress
from jobqueue.exceptions import JobQueueError
from jobqueue.transitions import release
from tests.app import coroutines, tasks
from tests.factories import claim_one, job, row, set_columns, settle_run, state
from tests.marks import committed

pytestmark = committed


def run(task, *arguments):
    """The TaskResult of a job of `task` that has been run, and how often its progress was written."""
    found = task.enqueue(*arguments)
    lease = claim_one("default")
    with CaptureQueriesContext(connection) as queries:
        settle_run(lease)
    found.refresh()
    return found, sum("progress" in query["sql"] for query in queries)


@pytest.mark.parametrize(
    ("how", "last", "end"),
    [
        ("returns", Progress(500, 500, "counting"), "DONE"),
        ("raises", Progress(500, 500, "counting"), "FAILED"),
        ("finishes", Progress(501, 500), "DONE"),
    ],
)
def test_the_last_word_is_kept_however_the_job_ends_and_few_are_written(evidence, how, last, end, monkeypatch):
    # However long five hundred reports take here.
    monkeypatch.setattr(progress, "WRITE_SECONDS", 600)
    result, writes = run(tasks.counts, 500, how)
    assert (result.progress, state(result.id)) == (last, end)
    assert writes <= 3


def test_a_coroutine_tells_too(evidence):
    result, _ = run(coroutines.counts, 50)
    assert result.progress == Progress(50, 50)
    assert evidence.read("told")[0][-1] == "False"


def test_it_can_be_read_while_the_job_runs():
    found = tasks.counts.enqueue(5)
    assert found.progress is None
    context = JobContext(claim_one("default"))
    context.progress(1, 4, "a quarter")
    found.refresh()
    assert (found.progress, str(found.progress)) == (Progress(1, 4, "a quarter"), "1 / 4 (25 %): a quarter")
    assert tasks.counts.get_result(found.id).progress == found.progress


def test_inside_a_transaction_it_waits_so_that_the_lease_can_be_renewed():
    found = tasks.counts.enqueue(5)
    context = JobContext(claim_one("default"))
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        context.progress(1)
    assert len(queries) == 0
    assert context.untold
    context.progress(2)
    assert job(found.id).progress == {"done": 2, "total": None, "note": ""}


def test_who_lost_the_lease_writes_nothing_and_goes_on():
    found = tasks.counts.enqueue(5)
    lease = claim_one("default")
    release(lease)
    before = row(found.id)
    JobContext(lease).progress(1)
    assert row(found.id) == before


@pytest.mark.parametrize(
    "arguments",
    [("1",), (True,), (-1,), (float("nan"),), (float("inf"),), (2**63,), (1, "2"), (1, -2), (1, 2, None), (1, 2, 3)],
    ids=str,
)
def test_bad_values_are_refused(arguments):
    tasks.counts.enqueue(5)
    with pytest.raises(JobQueueError):
        JobContext(claim_one("default")).progress(*arguments)


@pytest.mark.parametrize("total", [None, 0, 10, 0.5])
def test_any_total_can_be_shown(total):
    assert str(Progress(5, total)).startswith("5")


def test_a_note_that_no_database_stores_is_made_storable():
    found = tasks.counts.enqueue(5)
    JobContext(claim_one("default")).progress(1, 2, "\x00\ud800" + "x" * 5000)
    stored = job(found.id).progress["note"]
    assert stored.startswith("\\x00\\ud800x")
    assert len(stored) <= 500


@pytest.mark.parametrize("stored", [5, "x", [], {}, {"done": "1"}, {"done": -1}, {"done": 1, "note": 5}])
def test_what_another_program_wrote_in_its_own_way_is_no_progress(stored):
    found = tasks.counts.enqueue(5)
    set_columns(found.id, progress=stored)
    assert tasks.counts.get_result(found.id).progress is None
    assert read_progress(stored) is None
