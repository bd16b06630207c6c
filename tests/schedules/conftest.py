"""Tables of other packages, and a clock whose minute has just begun."""

from datetime import timedelta

import pytest

from jobqueue.db.clock import read_now
from jobqueue.testing import travel
from tests.schedules import foreign
from tests.schedules.helpers import USING


@pytest.fixture(autouse=True)
def minute_has_begun(request):
    """Most schedules here tick each minute; a test that begins at the end of one could meet the next tick too early."""
    if not request.node.get_closest_marker("django_db"):
        yield
        return
    request.getfixturevalue("db")
    minute = read_now(USING).replace(second=0, microsecond=0) + timedelta(minutes=1)
    with travel(to=minute + timedelta(seconds=1)):
        yield


@pytest.fixture(scope="module")
def foreign_tables(django_db_setup, django_db_blocker):
    """The tables of django-celery-beat and django-q2."""
    with django_db_blocker.unblock(), foreign.tables():
        yield
