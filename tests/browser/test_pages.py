"""Every page: readable by everybody in both themes, not wider than a telephone, and nothing that the policy refuses."""

import hashlib
import re

import pytest

from tests.browser.chromium import AXE
from tests.browser.walk import LANGUAGES, NARROW, THEMES

pytestmark = [
    # The walk empties the tables that it has filled; the mark is there because pytest makes no database without one.
    pytest.mark.django_db,
    # The first of these tests waits for the walk.
]

#: models whose pages the walk does not see, with the reason
WITHOUT_ROWS = {}


def told(lines):
    return "\n".join(lines)


@pytest.mark.parametrize("theme", THEMES)
def test_no_page_has_a_serious_finding_of_axe_core(walk, theme):
    wrong = [(visit, one) for visit in walk.visits for one in visit.violations[theme]]
    assert not wrong, told(f"{v.path}: {f['rule']} {f['selector']}\n    {f['why']}\n    {f['html']}" for v, f in wrong)


@pytest.mark.parametrize("width", NARROW)
@pytest.mark.parametrize("language", LANGUAGES)
def test_no_page_is_wider_than_a_telephone(walk, language, width):
    found = [(visit, visit.overflows[language, width]) for visit in walk.visits]
    wide = [(visit, overflow) for visit, overflow in found if overflow["pixels"]]
    assert not wide, told(f"{v.path}: {o['pixels']} px too wide: {', '.join(o['elements'])}" for v, o in wide)


def test_no_page_does_what_the_policy_refuses_or_has_a_script_that_fails(walk):
    wrong = [(visit, text) for visit in walk.visits for text in visit.complaints]
    assert not wrong, told(f"{visit.path}: {text}" for visit, text in wrong)


def test_every_address_was_visited_with_what_it_needs(walk):
    assert not walk.unknown, "tests.browser.rows.QUERIES has what an address needs to show a page"
    assert walk.rowless == set(WITHOUT_ROWS), "tests.browser.rows.fill() makes a row of each model that has pages"
    names = {visit.name for visit in walk.visits}
    assert {"app_list", "jobqueue_job_changelist", "jobqueue_job_change", "jobqueue_settings"} <= names


def test_the_checker_is_the_one_whose_hash_its_page_names():
    page = (AXE.parent / "README.md").read_text()
    hashes = dict(re.findall(r"SHA-256 of `(.+?)`: `([0-9a-f]{64})`", page))
    assert set(hashes) == {path.name for path in AXE.parent.iterdir()} - {"README.md"}
    for name, known in hashes.items():
        assert hashlib.sha256((AXE.parent / name).read_bytes()).hexdigest() == known, name
