"""The browser of the proofs, and the walk through all pages."""

import pytest
from django.core.management import call_command

from tests.browser.conftest import browser, site
from tests.browser.walk import walk as walk_all_pages
from tests.proofs.figures import FULL

__all__ = ["browser", "site", "walk"]
#: what the short form looks at
FEW = ("app_list", "jobqueue_job_changelist")


@pytest.fixture(scope="session")
def walk(browser, django_db_setup, django_db_blocker):
    """What was seen of all pages; of FEW of them in the short form. The tables are empty again."""
    with django_db_blocker.unblock():
        try:
            found = walk_all_pages(browser, only=None if FULL else FEW)
        finally:
            call_command("flush", verbosity=0, interactive=False)
    return found
