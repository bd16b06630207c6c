"""Marks that tests of several folders share."""

import pytest

#: Every commit is real, for processes and other connections. Only our tables are emptied afterwards, and permissions
#: are not made again: that would take longer than most of these tests.
committed = pytest.mark.django_db(transaction=True, available_apps=["jobqueue", "tests.app"])
