"""What a monitor does about chores that the server takes too long for."""

import logging

import pytest
from django.db import OperationalError

from tests.settings import VENDOR
from tests.unit.test_housekeeping import Refused, chores_of, take_turns


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="an error of these servers")
@pytest.mark.django_db
@pytest.mark.parametrize(
    "error",
    [(3024, "maximum statement execution time exceeded"), (1969, "max_statement_time exceeded"), (1205, "lock wait")],
)
def test_a_look_that_takes_the_server_too_long_is_left_out_and_says_nothing_of_the_database(error, caplog):
    slow = Refused(OperationalError(*error))
    found = chores_of(some_cleaner=slow.run_once)
    with caplog.at_level(logging.WARNING):
        take_turns(found)
        take_turns(found)
    assert slow.calls == 1
    assert "skipping the some cleaner for 60 s" in caplog.text
