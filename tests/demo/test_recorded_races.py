"""The figures of the recorded races: where they stand, what stands below them, and that nobody edits them by hand."""

import json

import pytest

from tests.demo.helpers import manage
from tests.launch import ROOT

RACES = ROOT / "demo_project" / "demo" / "races.json"

LOOK = """
import json
from pathlib import Path
from django.test import Client
from demo_project.demo import recorded
from tests.proofs.demo import page

content = json.loads(recorded.FILE.read_text())
print(json.dumps({
    "differ": [str(path) for path, text in page.pages(content).items() if path.read_text() != text],
    "site": Client(HTTP_HOST="127.0.0.1").get("/races/").content.decode(),
    "live": recorded.apart("serials"),
}))
"""


@pytest.fixture(scope="module")
def look():
    """What the demo shows of races.json."""
    done = manage("shell", "-v0", "-c", LOOK, DATABASE_URL="sqlite://:memory:", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs():
    """The recorded races."""
    return json.loads(RACES.read_text())["runs"]


def test_the_charts_and_tables_are_those_of_the_recorded_run(look):
    assert look["differ"] == [], "edited by hand; make prove ISSUE=demo writes them"


def test_the_site_shows_each_race_with_its_command_commit_and_date(look, runs):
    shown = look["site"].split("<h2>")[1:]
    assert len(shown) == len(runs)
    for part, run in zip(shown, runs, strict=True):
        assert run["database"] in part
        below = part.partition("<figcaption>")[2]
        assert all(run[key] in below for key in ("command", "made_by", "commit", "date"))
        assert "<svg" in part


def test_recorded_figures_are_told_apart_from_live_ones(look, runs):
    assert "No figure on this page is of this machine" in look["site"]
    assert look["live"].startswith("These are the figures of this run, on this machine. Recorded ones (")
    assert runs[0]["commit"] in look["live"]


@pytest.mark.parametrize("page", ["docs/howto/serial-numbers.md", "docs/explanation/auction.md"])
def test_below_the_chart_and_the_table_of_a_page_stand_command_commit_and_date(page, runs):
    text = (ROOT / page).read_text()
    block = text.partition("<!-- demo: begin -->")[2].partition("<!-- demo: end -->")[0]
    below = block.rpartition("|\n")[2]
    assert f"Recorded by `{runs[0]['made_by']}`, commit `{runs[0]['commit']}`, 20" in below
