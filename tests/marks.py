"""Marks that tests of several folders share."""

import pytest

#: Every commit is real, for processes and other connections. Only our tables are emptied afterwards, and permissions
#: are not made again: that would take longer than most of these tests.
committed = pytest.mark.django_db(transaction=True, available_apps=["jobqueue", "tests.app"])


def finding(number):
    """This test failed before finding `number` was fixed: docs/proof/findings.md is made from these marks."""
    return pytest.mark.finding(number=number)
