"""Tables of other packages."""

import pytest

from tests.schedules import foreign


@pytest.fixture(scope="module")
def foreign_tables(django_db_setup, django_db_blocker):
    """The tables of django-celery-beat and django-q2."""
    with django_db_blocker.unblock(), foreign.tables():
        yield
