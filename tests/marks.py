"""Marks that tests of several folders share."""

import pytest

from tests.settings import VENDOR

#: Every commit is real, for processes and other connections. Only our tables are emptied afterwards, and permissions
#: are not made again: that would take longer than most of these tests.
committed = pytest.mark.django_db(transaction=True, available_apps=["jobqueue", "tests.app"])

on_a_wire = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no wire on which an answer could be lost")


def finding(number):
    """This test failed before finding `number` was fixed: `make prove ISSUE=findings` runs it without the fix."""
    return pytest.mark.finding(number=number)
