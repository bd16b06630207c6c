"""What the cuts of these tests do to nobody else."""

import gc
from concurrent.futures import ThreadPoolExecutor

from django.db import connection, connections

from tests.faults.cuts import killed
from tests.marks import committed


def answer():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return cursor.fetchone()[0]


@committed
def test_a_process_that_is_killed_leaves_the_sessions_of_other_threads_open():
    """Its copies of their connections are garbage there, and one that is collected would end the session."""
    with ThreadPoolExecutor(1) as other:
        assert other.submit(answer).result() == 1
        assert not killed(1, gc.collect)
        assert other.submit(answer).result() == 1
        other.submit(connections.close_all).result()
