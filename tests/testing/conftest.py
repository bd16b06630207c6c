"""Every test of the kit runs twice: inside the transaction of a test case, and with real commits."""

import pytest
from django.db import connection

from jobqueue.models import Job
from tests.app.models import Ticket
from tests.marks import committed


@pytest.fixture(
    params=[pytest.param("rolled back", marks=pytest.mark.django_db), pytest.param("committed", marks=committed)]
)
def kind(request):
    """How the test meets the database."""
    request.getfixturevalue("db")
    assert connection.in_atomic_block == (request.param == "rolled back")
    assert not Job.objects.exists()
    return request.param


@pytest.fixture
def sold():
    """The numbers of all tickets, in their order."""
    return lambda: list(Ticket.objects.order_by("id").values_list("number", flat=True))
