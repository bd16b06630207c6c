"""The kit in Django's own test cases, without fixtures of pytest."""

from asgiref.sync import sync_to_async
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from jobqueue.models import Job
from jobqueue.testing import assert_enqueued, drain, run_inline
from tests.app import kit
from tests.app.models import Ticket


class InATransaction(TestCase):
    """The test's transaction is open all the time, and rolled back."""

    def test_jobs_run_inside_it(self):
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            transaction.on_commit(lambda: kit.sells.enqueue("a"))
        assert_enqueued(kit.sells, args=["a"], count=1)
        assert drain().ok == 1
        assert Ticket.objects.get().number == "a"

    @run_inline()
    def test_jobs_run_inline_inside_it(self):
        with transaction.atomic():
            kit.sells.enqueue("a")
            assert not Ticket.objects.exists()
        assert Ticket.objects.get().number == "a"

    def test_inline_for_a_whole_test(self):
        self.enterContext(run_inline())
        kit.sells.enqueue("a")
        assert Ticket.objects.exists()

    async def test_jobs_run_from_coroutines(self):
        await kit.sells.aenqueue("a")
        await kit.sells_as_a_coroutine.aenqueue("b")
        assert (await sync_to_async(drain)()).ok == 2
        assert await Ticket.objects.acount() == 2

    async def test_jobs_run_inline_from_coroutines(self):
        with run_inline():
            await kit.sells.aenqueue("a")
            await kit.sells_as_a_coroutine.aenqueue("b")
            assert await Ticket.objects.acount() == 2


class WithCommits(TransactionTestCase):
    """Every commit is real."""

    available_apps = ["jobqueue", "tests.app"]

    def test_jobs_run(self):
        kit.sells.enqueue("a")
        assert drain().ok == 1
        assert Job.objects.get().status == Job.Status.DONE
