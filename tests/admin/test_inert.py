"""Every page shows values that programs have written as plain text, however long they are."""

import pytest

from tests.admin import inert
from tests.admin.helpers import root, text_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", inert.VALUES)
def test_a_value_is_shown_and_does_nothing(name):
    text, client = inert.VALUES[name], root()
    pages = {path: text_of(client.get(path, query)) for path, query in inert.fill(text)}
    assert {path: found for path, page in pages.items() if (found := inert.wrong(page, text))} == {}
    assert sum(inert.shown(page, text) for page in pages.values()) >= len(inert.PLACES)


def test_a_page_of_a_job_with_mebibytes_is_short():
    client = root()
    for path, query in inert.large():
        page = text_of(client.get(path, query))
        assert inert.wrong(page, "<b>") == []
        assert "<b>yyy" not in page
        assert len(page) < inert.MEBIBYTE / 4
