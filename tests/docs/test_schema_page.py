"""The page of the schema has every table once, and names settings that exist."""

import re

from django.apps import apps

from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "reference" / "schema.md"


def test_every_table_has_its_line():
    tables = {model._meta.db_table for model in apps.get_app_config("jobqueue").get_models()}
    listed = re.findall(r"^\| `(job_\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(tables)


def test_the_settings_that_delete_rows_exist():
    settings = (PAGE.parent / "settings.md").read_text()
    named = set(re.findall(r"`([A-Z_]*RETENTION[A-Z_]*|[A-Z_]+_SECONDS)`", PAGE.read_text()))
    assert named
    assert {name for name in named if f"| `{name}` |" not in settings} == set()
