"""One browser for all tests of the session, and the walk that several tests judge."""

import pytest
from django.core.management import call_command

from tests.browser.chromium import started
from tests.browser.site import logged_in, served
from tests.browser.walk import walk as walk_all_pages
from tests.servers import programs


@pytest.fixture(scope="session")
def browser():
    """The browser; without one the test is skipped, and says why."""
    with started(programs.installed("chromium"), programs.installed("chromedriver")) as found:
        yield found


@pytest.fixture(scope="session")
def walk(browser, django_db_setup, django_db_blocker):
    """What was seen of all pages. The tables are empty again before the first test looks at it."""
    with django_db_blocker.unblock():
        try:
            found = walk_all_pages(browser)
        finally:
            call_command("flush", verbosity=0, interactive=False)
    return found


@pytest.fixture
def site(browser, transactional_db):
    """The browser, logged in to a site whose tables the test fills."""
    with served() as base:
        browser.resize(1400)
        browser.prefer("light")
        browser.visit_site(base, logged_in())
        yield browser
        browser.run_scripts(True)
        browser.leave()
