"""Fixtures for all tests."""

import pytest
from django.db import connection

from tests.settings import VENDOR


def pytest_report_header(config):
    """Say which database the tests use."""
    return f"jobqueue tests on {VENDOR}"


@pytest.fixture
def vendor_name():
    """sqlite, mysql, mariadb or postgres."""
    return VENDOR


@pytest.fixture
def sql(db):
    """Run one statement of a program that knows only SQL; the rows it gives, or the count of rows it changed."""

    def run(statement, params=()):
        with connection.cursor() as cursor:
            cursor.execute(statement, params)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    return run


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """The file that test tasks write to; read() gives its lines as lists of words."""
    from tests.app import tasks

    class Evidence:
        path = tmp_path / "evidence"

        def read(self, event=None):
            text = self.path.read_text() if self.path.exists() else ""
            lines = [line.split() for line in text.splitlines()]
            return [line for line in lines if event is None or line[0] == event]

    monkeypatch.setattr(tasks, "LOG", str(Evidence.path))
    return Evidence()
