"""Marks that tests of several folders share."""

import pytest

from tests.settings import VENDOR

#: The test commits, so that other connections and processes see its rows. tests/flush.py deletes them after the test.
committed = pytest.mark.django_db(transaction=True)

on_a_wire = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no wire on which an answer could be lost")


def finding(number):
    """This test failed before finding `number` was fixed: `make prove ISSUE=findings` runs it without the fix."""
    return pytest.mark.finding(number=number)
