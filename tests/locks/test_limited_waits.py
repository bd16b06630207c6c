"""Waits for a mutex that the database ends by itself."""

import pytest
from django.db import connection, transaction

from jobqueue.exceptions import LockNotAcquired
from jobqueue.locks import mutex
from tests.app.models import Ticket
from tests.locks.helpers import mutex_in_transaction
from tests.marks import finding
from tests.patience import patient
from tests.races.actors import holding
from tests.settings import VENDOR

real = pytest.mark.django_db(transaction=True)
limits = pytest.mark.skipif(VENDOR not in ("postgres", "mariadb"), reason="no limit of the session ends a locking read")


@pytest.fixture
def limited():
    """A session whose statements may take a second, on a busy machine more: some have nothing to wait for."""
    seconds = patient(0.2)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SET statement_timeout = {round(1000 * seconds)}"
            if VENDOR == "postgres"
            else f"SET max_statement_time = {seconds}"
        )
    yield
    connection.close()


@real
@limits
@finding("L24")
def test_a_limit_of_the_statement_is_a_mutex_that_was_not_got(limited):
    def lock():
        with transaction.atomic():
            mutex("a")

    with holding(lambda: mutex("a")):
        with pytest.raises(LockNotAcquired, match="ended the wait by itself"):
            lock()
    mutex_in_transaction("a")


@real
@limits
@finding("L24")
def test_with_a_timeout_of_its_own_the_transaction_goes_on_after_such_a_limit(limited):
    mutex_in_transaction("a")
    with holding(lambda: mutex("a")):
        with transaction.atomic():
            with pytest.raises(LockNotAcquired):
                mutex("a", timeout_seconds=30)
            Ticket.objects.create(number="after")
    assert Ticket.objects.count() == 1
