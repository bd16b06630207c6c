"""The table of promises: what proves them, how long it may take, and the list of them."""

import re
from pathlib import Path

import pytest

from tests.architecture.test_layers import ROOMS
from tests.proofs import index
from tests.proofs.model import ALL, DATABASES, ROOT, Page, Part, Promise
from tests.proofs.table import ALL_MINUTES, PAGE_MINUTES, PAGES

PARTS = [(page, part) for page in PAGES.values() for part in page.parts]
#: pages that are stale after any change of the package say nothing about rooms
OF_ALL = {"findings", "mutants"}
#: what no proof at full size runs; the tests of these rooms have no other size
UNMEASURED = {"testing", "otel", "middleware", "apps", "migrations", "checks", "log_format", "signals"}
UNMEASURED |= {"exceptions"}


def name(found):
    """The id of a case."""
    page, part = found
    return f"{page.name}-{part.name}"


def sources(part: Part) -> str:
    """The text of the tests of a part, each docstring in one line."""
    paths = (ROOT / test for test in part.tests)
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    return " ".join(" ".join(file.read_text() for file in files).split())


def test_every_file_and_folder_that_a_page_depends_on_exists():
    paths = {path for page, part in PARTS for path in (*page.proves, *part.tests, *page.depends(part))}
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_room_is_covered_by_a_page():
    proved = {
        path.removeprefix("jobqueue/") for page in PAGES.values() if page.name not in OF_ALL for path in page.proves
    }
    tops = {room.partition(".")[0] for room in ROOMS} - UNMEASURED
    missing = [room for room in sorted(tops) if room not in proved and f"{room}.py" not in proved]
    assert missing == [], "add them to `proves` of a page of tests/proofs/table.py"


def test_a_page_takes_half_an_hour_at_most_and_all_of_them_six_hours():
    minutes = {page.name: sum(sum(part.minutes.values()) for part in page.parts) for page in PAGES.values()}
    assert {name: each for name, each in minutes.items() if each > PAGE_MINUTES} == {}
    assert sum(minutes.values()) <= ALL_MINUTES


def test_every_test_at_full_size_is_a_part_of_a_page():
    run = {path for _page, part in PARTS for path in part.tests}
    proofs = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/proofs").rglob("test_*.py")}
    walks = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/faults").glob("test_*_walk.py")}
    assert (proofs | walks) - run == set()


@pytest.mark.parametrize("found", PARTS, ids=name)
def test_the_figure_of_a_promise_is_one_that_its_tests_write(found):
    page, part = found
    assert part.promises
    assert set(part.minutes) <= {*DATABASES, ALL}
    if page.name == "benchmarks":
        return
    text = sources(part)
    for promise in part.promises:
        heading = promise.heading.replace(" ", "_").lower()
        assert promise.heading in text or f"test_{heading}" in text.lower(), promise
        column = promise.figure
        others = (f"{column.replace(' ', '_')}=", f'"{column}"', f"'{column}'")
        # The columns of a race are the fields of its verdicts.
        assert page.name == "demo" or any(word in text for word in others), promise


def test_a_promise_is_a_sentence_of_its_own():
    texts = [promise.text for _page, part in PARTS for promise in part.promises]
    assert len(set(texts)) == len(texts)
    assert [text for text in texts if not text.endswith(".") or len(text) > 130] == []


def test_the_list_is_the_one_of_the_table():
    assert (ROOT / index.FILE).read_text() == index.text(), "python -m tests.proofs.index writes it"


def test_a_promise_is_listed_with_its_command_figure_commit_and_date(tmp_path, monkeypatch):
    promise = Promise("Nothing is lost.", "Kills of all", "jobs lost")
    page = Page("core", "About.", (), (Part("kills", {"sqlite": 1, "mysql": 1}, (), (promise,)),))
    monkeypatch.setattr(index, "PAGES", {"core": page})
    assert "About. `make prove ISSUE=core`\n" in index.text(tmp_path)
    assert "- Nothing is lost.\n" in index.text(tmp_path)
    (tmp_path / "docs/proof").mkdir(parents=True)
    measured = """\
| kills | sqlite | `0123456789ab` | 2026-11-27 | 1.0 |
| kills | mysql | `ba9876543210` | 2026-11-28 | 1.0 |

## Kills of all processes.

| database | jobs | jobs lost |
| --- | --- | --- |
| sqlite | 10 | 0 |
| mysql | 11 | 2 |

## Others.

| database | jobs lost |
| --- | --- |
| mysql | 9 |
"""
    (tmp_path / page.file).write_text(measured)
    text = index.text(tmp_path)
    listed = "jobs lost: 0 to 2 | 0123456789ab (2026-11-27), ba9876543210 (2026-11-28) |"
    assert f"| Nothing is lost. | {listed}" in text
    assert "About. `make prove ISSUE=core` [The page](core.md)" in text


def test_a_figure_of_the_benchmarks_is_that_of_its_row(tmp_path):
    promise = Promise("Fast.", "Drain", "jobs/s", "jobqueue")
    page = Page("benchmarks", "About.", (), (Part("speed", {"mysql": 1}, (), (promise,)),), path="docs/benchmarks.md")
    measured = "### Drain\n\n**MySQL** (2026-11-28 10:00 UTC, commit 0123456789ab, size `quick`, load 0.1 before)\n\n"
    measured += (
        "|  | who | jobs/s |\n|---|---|---|\n| 1 worker | jobqueue | 7,000 (6,900-7,100) |\n| 1 worker | raw | 9 |\n"
    )
    found = index.line(page, page.parts[0], promise, measured)
    assert found == "| Fast. | jobs/s: 7,000 (6,900-7,100) | 0123456789ab (2026-11-28) |"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["3", "0.5", "-"], "0.5 to 3"),
        (["1,000", "20"], "20 to 1,000"),
        (["0", "0"], "0"),
        (["a", "b", "a"], "a, b"),
        (["a", "b", "c", "d"], "a, b, c, ..."),
        (["-"], "-"),
    ],
)
def test_a_figure_of_several_rows_is_their_bounds_or_the_first_words(values, words):
    assert index.in_words(values) == words


def test_no_page_has_the_name_of_another_and_no_part_either():
    assert len({page.file for page in PAGES.values()}) == len(PAGES)
    for page in PAGES.values():
        names = [part.name for part in page.parts]
        assert len(set(names)) == len(names), page.name
        assert all(re.fullmatch(r"\w+", each) for each in names)
        assert Path(page.file).suffix == ".md"
