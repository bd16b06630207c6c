"""docs/howto/admin.md names every page of the navigation and every permission of our own."""

from django.apps import apps

from jobqueue.admin.page.navigation import _PAGES
from tests.docs.markdown import ROOT, code, table

PAGE = ROOT / "docs" / "howto" / "admin.md"


def test_it_lists_the_pages_in_the_order_of_the_navigation():
    pages = [row[0] for row in table(PAGE, "The dashboard in the admin")]
    assert pages == [page.word for page in _PAGES if page.word in pages]
    missing = {str(page.word) for page in _PAGES} - {*pages}
    assert missing == set()


def test_it_lists_every_permission_that_is_not_djangos():
    own = {name for model in apps.get_app_config("jobqueue").get_models() for name, _ in model._meta.permissions}
    listed = {code(row[0])[0] for row in table(PAGE, "Permissions")}
    assert own <= listed
    assert listed - own == {"change_failurenote"}


def test_the_permissions_of_the_pages_are_those_that_the_navigation_asks_for():
    needed = {row[0]: code(row[2]) for row in table(PAGE, "The dashboard in the admin")}
    for page in _PAGES:
        assert not page.permission or page.permission in needed[str(page.word)], page
