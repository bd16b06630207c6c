"""A dump of the tables by Django's own commands, dumpdata and loaddata, loses nothing."""

from datetime import datetime

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection

from tests.browser import rows
from tests.flush import empty_tables
from tests.marks import committed

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]


def in_milliseconds(value):
    """Django's JSON has no more of an instant."""
    return value.replace(microsecond=value.microsecond // 1000 * 1000) if isinstance(value, datetime) else value


def stored():
    """All rows of each table, whatever the managers of its model leave out."""
    found = {}
    for model in apps.get_app_config("jobqueue").get_models():
        values = [tuple(map(in_milliseconds, row)) for row in model._base_manager.values_list()]
        found[model._meta.label] = sorted(values, key=repr)
    return found


def test_a_dump_of_all_tables_that_is_loaded_again_has_each_row(tmp_path):
    rows.fill()
    before = stored()
    call_command("dumpdata", "jobqueue", output=str(tmp_path / "dump.json"))
    empty_tables(connection)
    call_command("loaddata", str(tmp_path / "dump.json"), verbosity=0)
    after = stored()
    for label, found in before.items():
        assert after[label] == found, label
