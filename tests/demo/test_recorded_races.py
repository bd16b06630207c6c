"""The figures of recorded races: where they stand, what stands below them, and that nobody edits them by hand."""

import json

import pytest

from tests.demo.helpers import manage
from tests.launch import ROOT

#: four races of two strategies each, as tests/proofs/demo/test_races.py writes them
RACES = ROOT / "tests" / "demo" / "recorded_races.json"
COMMIT = "0123456789ab"
PAGES = ("docs/howto/serial-numbers.md", "docs/explanation/auction.md")

LOOK = """
import json
from pathlib import Path
from django.test import Client
from demo_project.demo import recorded
from tests.proofs.demo import shown

before = recorded.FILE
nothing = Client(HTTP_HOST="127.0.0.1").get("/races/").content.decode() if not before.exists() else ""
differ = shown.pages(json.loads(before.read_text())) if before.exists() else {}
content = shown.content_of(shown.results(FILES))
recorded.FILE = Path(FOLDER, "races.json")
recorded.FILE.write_text(json.dumps(content))
recorded.recorded.cache_clear()
pages = {str(path.relative_to(shown.ROOT)): text for path, text in shown.pages(content).items()}
print(json.dumps({
    "differ": [str(path) for path, text in differ.items() if path.read_text() != text],
    "nothing": nothing,
    "pages": pages,
    "site": Client(HTTP_HOST="127.0.0.1").get("/races/").content.decode(),
    "live": recorded.apart("serials"),
}))
"""


@pytest.fixture(scope="module")
def runs():
    """The recorded races."""
    return json.loads(RACES.read_text())


@pytest.fixture(scope="module")
def look(runs, tmp_path_factory):
    """What the demo shows of them, and whether what it shows now is what was recorded."""
    folder = tmp_path_factory.mktemp("races")
    files = []
    for vendor in ("sqlite", "mysql"):
        lines = [{"says": "", "test": "", "on": vendor, "run": run} for run in runs if run["vendor"] == vendor]
        of_it = {"part": "races", "database": vendor, "commit": COMMIT, "date": "2026-11-28", "minutes": 1.0}
        files.append(folder / vendor)
        files[-1].write_text(json.dumps(of_it | {"lines": lines}))
    script = LOOK.replace("FILES", repr(list(map(str, files)))).replace("FOLDER", repr(str(folder)))
    done = manage("shell", "-v0", "-c", script, DATABASE_URL="sqlite://:memory:", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_charts_and_tables_are_those_of_the_recorded_run(look):
    assert look["differ"] == [], "edited by hand; make prove ISSUE=demo writes them"


def test_the_site_shows_each_race_with_its_command_commit_and_date(look, runs):
    shown = look["site"].split("<h2>")[1:]
    assert len(shown) == len(runs)
    below = [part.partition("<figcaption>")[2] for part in shown]
    for run in runs:
        (part,) = (words for words in shown if run["database"] in words and run["command"] in words)
        assert "<svg" in part
    assert all("make prove ISSUE=demo" in words and COMMIT in words and "2026-" in words for words in below)


def test_the_site_says_when_nothing_is_recorded(look):
    if (ROOT / "demo_project/demo/races.json").exists():
        pytest.skip("something is recorded")
    assert "Nothing is recorded yet" in look["nothing"]


def test_recorded_figures_are_told_apart_from_live_ones(look):
    assert "No figure on this page is of this machine" in look["site"]
    assert look["live"].startswith("These are the figures of this run, on this machine. Recorded ones (")
    assert COMMIT in look["live"]


@pytest.mark.parametrize("page", PAGES)
def test_the_figures_of_a_page_are_tied_to_their_proof_and_name_command_commit_and_date(look, page):
    block = look["pages"][page].partition("<!-- figure: ")[2].partition("<!-- figure: end -->")[0]
    assert block.startswith(f"docs/proof/demo.md {COMMIT} -->\n![")
    assert "| strategy | SQLite | MySQL |" in block
    assert f"Recorded by `make prove ISSUE=demo`, commit `{COMMIT}`, 20" in block.rpartition("|\n")[2]


def test_the_chart_of_each_race_is_written_beside_its_page(look):
    assert set(look["pages"]) == {*PAGES, "docs/img/serials-mysql.svg", "docs/img/auction-mysql.svg"}
