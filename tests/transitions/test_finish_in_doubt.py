"""finish() has committed, and something is raised behind the commit: the job is told to have succeeded, as it has."""

import threading
from contextlib import suppress
from unittest.mock import patch

import pytest
from django.db import Error, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue import current_job, task
from jobqueue.base.compat import TaskResultStatus, signals
from jobqueue.models import JobAttempt
from jobqueue.signals import attempt_ended, lease_lost
from tests.app.models import Account
from tests.factories import claim_one, settle_run, state
from tests.faults.finishing import lose_connection
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = committed
has_sessions = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no answer that could be lost")


@pytest.fixture
def told():
    """What was told about the run: by attempt_ended, lease_lost and task_finished."""
    found = []

    def ended(sender, outcome, error, **_):
        found.append(("ended", outcome))

    def lost(sender, **_):
        found.append(("lost",))

    def finished(sender, task_result, **_):
        value = task_result.return_value if task_result.status == TaskResultStatus.SUCCESSFUL else None
        found.append(("finished", task_result.status, value))

    attempt_ended.connect(ended)
    lease_lost.connect(lost)
    signals.task_finished.connect(finished)
    yield found
    attempt_ended.disconnect(ended)
    lease_lost.disconnect(lost)
    signals.task_finished.disconnect(finished)


@pytest.fixture
def run(own_registry):
    """Run a body as a task in a job thread; the outcome is written by this one."""

    def run(body):
        job_id = task(max_attempts=1)(body).enqueue().id
        lease = claim_one("default")

        def work():
            try:
                settle_run(lease)
            finally:
                connections.close_all()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return job_id

    return run


SUCCESS = [("finished", TaskResultStatus.SUCCESSFUL, "paid"), ("ended", "ok")]


def refuse():
    raise ValueError("in a hook")


def hook_inside():
    with current_job().finish(result="paid"):
        Account.objects.create(balance=1)
        transaction.on_commit(refuse)


def hook_of_the_jobs_own_transaction():
    with transaction.atomic():
        transaction.on_commit(refuse)
        with current_job().finish(result="paid"):
            Account.objects.create(balance=1)


def hook_whose_error_is_caught():
    with suppress(ValueError):
        hook_inside()


@finding("A17")
@pytest.mark.parametrize("body", [hook_inside, hook_of_the_jobs_own_transaction, hook_whose_error_is_caught])
def test_a_hook_that_raises_after_the_commit_makes_no_loss_of_it(run, told, body):
    job_id = run(body)
    assert (state(job_id), Account.objects.count(), JobAttempt.objects.count()) == ("DONE", 1, 0)
    assert sorted(told) == sorted(SUCCESS)


def answer_is_lost():
    """The COMMIT of finish() reaches the server; its answer does not come back."""
    really = BaseDatabaseWrapper._commit

    def commit(self):
        really(self)
        lose_connection(self, True)

    with patch.object(BaseDatabaseWrapper, "_commit", commit), current_job().finish(result="paid"):
        Account.objects.create(balance=1)


def answer_is_lost_and_the_error_caught():
    with suppress(Error):
        answer_is_lost()


@finding("A17")
@has_sessions
@pytest.mark.parametrize("body", [answer_is_lost, answer_is_lost_and_the_error_caught])
def test_an_answer_to_the_commit_that_is_lost_makes_no_loss_of_it(run, told, body):
    job_id = run(body)
    assert (state(job_id), Account.objects.count(), JobAttempt.objects.count()) == ("DONE", 1, 0)
    assert sorted(told) == sorted(SUCCESS)


def rolled_back():
    with transaction.atomic():
        with current_job().finish(result="paid"):
            Account.objects.create(balance=1)
        raise ValueError("after finish()")


def rolled_back_without_a_word():
    with transaction.atomic():
        with current_job().finish(result="paid"):
            Account.objects.create(balance=1)
        transaction.set_rollback(True)


@pytest.mark.parametrize(("body", "end"), [(rolled_back, "FAILED"), (rolled_back_without_a_word, "DONE")])
def test_a_finish_that_was_rolled_back_is_no_success_of_it(run, told, body, end):
    job_id = run(body)
    assert (state(job_id), Account.objects.count()) == (end, 0)
    assert ("lost",) not in told
    assert connection.in_atomic_block is False
