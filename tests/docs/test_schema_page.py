"""The page of the schema shows the statements that migrate runs."""

import django
import pytest

from tests.docs.schema import PAGE, TITLES, ddl, section
from tests.marks import committed
from tests.settings import VENDOR

LINE = (5, 2)


@committed
@pytest.mark.skipif(django.VERSION[:2] != LINE, reason="the page says which Django wrote it")
def test_the_page_shows_what_sqlmigrate_prints():
    assert section(PAGE.read_text(), VENDOR) == ddl(), f"run JOBQUEUE_TEST_DB={VENDOR} python -m tests.docs.schema"


@pytest.mark.skipif(VENDOR != "sqlite", reason="once is enough")
def test_every_database_has_its_part():
    page = PAGE.read_text()
    assert all(section(page, database) for database in TITLES)
    assert f"on Django {'.'.join(map(str, LINE))}" in page
