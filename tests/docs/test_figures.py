"""Measured figures in the pages are tied to the page of evidence that has them, or are not there."""

import re

import pytest

from tests.docs.markdown import OTHERS, PAGES, links, name
from tests.proofs.freshness import FIGURE
from tests.proofs.model import ROOT
from tests.proofs.table import PAGES as EVIDENCE

#: words that tell of a measurement, and something that was counted in it
MEASURED = re.compile(r"\b(measured|measurement|recorded by|in the same run|median of|benchmark)\b", re.IGNORECASE)
UNITS = r"%|(ms|µs|s|MB|/s|times|microseconds?|seconds?|minutes?)\b|[\w-]+( [\w-]+)? (a|per) second"
NUMBER = re.compile(rf"\d[\d,.]*\s?({UNITS})")
COMMIT, DATE = re.compile(r"\bcommit `[0-9a-f]{7,40}`"), re.compile(r"\b20\d\d-\d\d-\d\d\b")
#: it says what was true at each release
LOG = {"CHANGELOG.md"}
RECORDS = [page for page in PAGES if "adr" in page.parts]
WRITTEN = [page for page in [*PAGES, *OTHERS] if page not in RECORDS and page.name not in LOG]


def paragraphs(text):
    """The paragraphs and tables outside of code and hidden comments."""
    return re.split(r"\n\s*\n", re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE))


def untied(text):
    """The paragraphs with a measured figure that no hidden comment ties to a page of evidence."""
    return [part for part in paragraphs(FIGURE.sub("", text)) if COMMIT.search(part) or is_measured(part)]


def is_measured(paragraph):
    """Whether it tells a figure that was measured; names in code tell nothing."""
    words = re.sub(r"`[^`\n]*`", "", paragraph)
    return bool(MEASURED.search(words) and NUMBER.search(words))


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_a_measured_figure_is_tied_to_its_page_of_evidence(page):
    assert untied(page.read_text()) == [], (
        "<!-- figure: PAGE COMMIT --> around it, or the command instead of the figure"
    )


@pytest.mark.parametrize("page", WRITTEN + RECORDS, ids=name)
def test_only_figures_link_to_single_pages_of_evidence(page):
    quoted = {link for match in FIGURE.finditer(page.read_text()) for link in re.findall(r"\]\(([^)\s]+)\)", match[3])}
    targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page) if link not in quoted}
    assert targets & {ROOT / each.file for each in EVIDENCE.values()} == set()


@pytest.mark.parametrize("page", RECORDS, ids=name)
def test_a_decision_record_names_the_commit_and_the_date_of_its_figures(page):
    text = page.read_text()
    if any(map(is_measured, paragraphs(text))):
        assert COMMIT.search(text)
    assert bool(COMMIT.search(text)) == bool(DATE.search(text))


@pytest.mark.parametrize(
    "text",
    [
        "We measured 7,000 jobs a second.\n",
        "A claim takes 5 ms; this was measured on\ntwo cores.\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n\nRecorded by `make prove`, commit `0123456789ab`.\n",
        "In the same run Celery finished 705 jobs per second.\n",
    ],
)
def test_the_check_sees_figures_that_are_not_tied(text):
    assert untied(text)
    assert not untied(f"<!-- figure: docs/benchmarks.md 0123456789ab -->\n{text}<!-- figure: end -->\n")


@pytest.mark.parametrize(
    "text",
    [
        "`make bench` measures how many jobs a second your server can do.\n",
        "An idle worker looks every 200 ms.\n",
        "```text\nmeasured 7,000 jobs a second\n```\n",
    ],
)
def test_commands_limits_and_examples_are_no_measured_figures(text):
    assert untied(text) == []
