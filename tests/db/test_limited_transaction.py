"""One transaction that the server ends if its session idles in it, on a session whose others may take longer."""

import pytest
from django.db import connection, connections, transaction

from jobqueue.db import vendor
from tests.marks import committed
from tests.settings import VENDOR

LIMIT = {
    "mysql": "SELECT @@SESSION.wait_timeout",
    "mariadb": "SELECT @@SESSION.idle_transaction_timeout",
    "postgres": "SELECT setting::int / 1000 FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'",
}
pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="it has no sessions")]


def limit():
    """After how many seconds the server ends this session, if it idles in a transaction; 0 is never."""
    with connection.cursor() as cursor:
        cursor.execute(LIMIT[VENDOR])
        return int(cursor.fetchone()[0])


def within(seconds):
    with vendor("default").limited_transaction(connections["default"], seconds):
        return limit()


def test_has_the_limit_and_other_transactions_of_the_session_have_not():
    usual = limit()
    assert (within(5), limit()) == (5, usual)
    with transaction.atomic():
        assert limit() == usual
    assert within(7) == 7


def test_leaves_the_session_as_it_was_after_an_error():
    usual = limit()
    with pytest.raises(ZeroDivisionError), vendor("default").limited_transaction(connections["default"], 5):
        raise ZeroDivisionError
    assert limit() == usual
    with transaction.atomic():
        assert limit() == usual


def test_on_a_session_that_was_opened_again_it_has_the_limit_too():
    within(5)
    connection.close()
    assert within(5) == 5
