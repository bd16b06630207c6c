"""What leaves for the server is text: MySQL refuses every look at its processes while a statement of raw bytes runs."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest
from django.db import connection, transaction

from jobqueue import enqueue
from jobqueue.db import vendor
from jobqueue.models import Job, JobAttempt, OutboxEvent
from jobqueue.outbox import publish
from jobqueue.transitions import fail
from tests import walk
from tests.factories import claim_one
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="parameters do not travel in the text"),
]


@contextmanager
def sent():
    """Everything that drivers send in the block, byte for byte."""
    from MySQLdb.connections import Connection

    found, real = [], Connection.query

    def query(self, text):
        found.append(text if isinstance(text, bytes) else bytes(text))
        return real(self, text)

    with patch.object(Connection, "query", query):
        yield found


def is_text(statement):
    try:
        statement.decode()
    except UnicodeDecodeError:
        return False
    return b"\x00" not in statement


@finding("item-1")
@pytest.mark.parametrize("step", walk.STEPS)
def test_binary_values_leave_as_text(step):
    with sent() as statements:
        walk.STEPS[step]()
    assert len(statements) > 1
    assert [statement for statement in statements if not is_text(statement)] == []
    assert [statement for statement in statements if b"_binary" in statement] == []


@finding("item-1")
@pytest.mark.skipif(VENDOR != "mysql", reason="MariaDB shows them")
@pytest.mark.parametrize("step", walk.STEPS)
def test_names_leave_without_characters_of_four_bytes(step):
    with sent() as statements:
        walk.STEPS[step]()
    assert [statement for statement in statements if "😀".encode() in statement] == []


@finding("item-1")
@pytest.mark.skipif(VENDOR != "mysql", reason="MariaDB shows them")
def test_characters_of_four_bytes_do_not_leave_as_they_are():
    """The columns of information_schema have three bytes a character, and a fourth is refused like raw bytes."""
    payload = {"face 😀": ["😀😀", "schön", "한", "\\u0041"]}
    with sent() as statements:
        job_id = enqueue("q", payload)
        fail(claim_one(), error="no 😀 today", retry=False)
        Job.objects.filter(pk=job_id).update(result={"done": "😀"})
        assert publish_one(payload)
    assert [statement for statement in statements if "😀".encode() in statement] == []
    found = Job.objects.get(pk=job_id)
    assert (found.payload, found.result, found.last_error) == (payload, {"done": "😀"}, "no 😀 today")
    assert JobAttempt.objects.get(job_id=job_id).error == "no 😀 today"
    assert OutboxEvent.objects.get().payload == payload


def publish_one(payload):
    with transaction.atomic():
        return publish("t", payload)


@pytest.mark.parametrize("text", ["plain", "é 한 🚀", '"it\'s" \\ \n \r \0 \x1a', '{"a": "' + "\\" * 50 + '"}'])
def test_the_bytes_of_a_text_are_counted_with_what_the_driver_adds(text):
    connection.ensure_connection()
    assert vendor("default").statement_bytes(text) >= len(connection.connection.literal(text)) - len("''")
