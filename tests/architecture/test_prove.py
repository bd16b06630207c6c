"""`make prove`: what it repeats, what it ends, and the pages that it writes."""

import json
import os
import subprocess
import sys

import pytest

from tests.proofs import freshness, page, run
from tests.proofs.model import ALL, ROOT, Page, Part
from tests.proofs.page import Result
from tests.proofs.table import PAGES

WRITES = "import json, os; print(json.dumps({'says': 'It holds.', 'test': 't', 'on': 'sqlite', 'jobs': 7}),"
WRITES += " file=open(os.environ['JOBQUEUE_PROVE_OUT'], 'a'))"


def part_of(name, code, minutes=1):
    """A part that runs this code."""
    return Part(name, {"sqlite": minutes}, (), (), ("-c", code))


@pytest.fixture
def prove(monkeypatch, tmp_path):
    """prove(part): (what it says, the results that are kept); nothing has changed since the last commit."""
    monkeypatch.setattr(run, "KEPT", tmp_path)
    monkeypatch.setattr(run, "git", lambda *words: "" if words[0] == "status" else "0123456789ab\n")
    monkeypatch.setattr(run, "fingerprint", lambda paths: "of-code")
    # Without servers, which nothing here needs.
    monkeypatch.setattr(run, "command", lambda part, database: [sys.executable, *part.arguments(database)])

    def prove(part):
        says = run.prove(Page("core", "About.", ("jobqueue",), (part,)), part, "sqlite")
        return says, [Result.read(path) for path in sorted(tmp_path.rglob("*.json"))]

    return prove


def test_a_part_that_passes_is_kept_with_its_commit_and_date(prove):
    says, (result,) = prove(part_of("kills", WRITES))
    assert says == ""
    assert (result.part, result.database, result.commit) == ("kills", "sqlite", "0123456789ab")
    assert result.lines == [{"says": "It holds.", "test": "t", "on": "sqlite", "jobs": 7}]


def test_a_part_that_fails_is_named_and_not_kept(prove, tmp_path):
    assert prove(part_of("kills", f"{WRITES}; raise SystemExit(3)")) == ("failed with status 3", [])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_part_that_takes_longer_than_its_minutes_is_ended_and_named(prove):
    part = part_of("kills", f"import time; {WRITES}; time.sleep(600)", minutes=0.01)
    assert prove(part) == ("ended, as it took longer than 0.01 minutes", [])


def test_a_part_whose_tests_are_skipped_is_named_and_not_kept(prove):
    assert prove(part_of("kills", "pass")) == ("it has measured nothing: were its tests skipped?", [])


def test_what_is_not_committed_is_not_proved(prove, monkeypatch):
    monkeypatch.setattr(run, "git", lambda *words: " M jobqueue/bulk.py\n")
    says, results = prove(part_of("kills", WRITES))
    assert says.endswith("commit this first: M jobqueue/bulk.py")
    assert results == []


def test_a_part_is_run_again_only_if_what_it_depends_on_has_changed(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "KEPT", tmp_path)
    seen = []
    monkeypatch.setattr(run, "fingerprint", lambda paths: seen.append(paths) or "same")
    flow = PAGES["flow"]
    rates = flow.part("rates")
    assert run.kept(flow, rates, "mysql") == tmp_path / "flow" / "rates-mysql-same.json"
    (paths,) = seen
    assert {"jobqueue/flow", "tests/proofs/flow/test_rates.py", "tests/proofs/flow/crowd.py"} <= set(paths)
    assert "tests/proofs/flow/test_pause.py" not in paths


def test_a_run_goes_on_where_it_was_and_names_what_is_missing(monkeypatch, tmp_path, capsys):
    pages = {"core": Page("core", "About.", (), (part_of("good", ""), part_of("bad", ""), part_of("kept", "")))}
    ran, written = [], []
    monkeypatch.setattr(run, "PAGES", pages)
    monkeypatch.setattr(run, "kept", lambda page, part, on: tmp_path / part.name)
    monkeypatch.setattr(run, "write", written.append)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    (tmp_path / "docs/proof").mkdir(parents=True)
    (tmp_path / "kept").touch()
    monkeypatch.setattr(
        run, "prove", lambda page, part, on: ran.append((part.name, on)) or ("broke" if part.name == "bad" else "")
    )
    assert run.main(["core"]) == 1
    assert ran == [("good", "sqlite"), ("bad", "sqlite")]
    assert written == [pages["core"]]
    assert capsys.readouterr().out.endswith("core: bad on sqlite: broke\n")
    assert (tmp_path / "docs/proof/index.md").exists()


def test_one_database_leaves_the_others_out_but_for_what_needs_all_servers():
    assert {on for _, on in run.planned(PAGES["core"], "mysql")} == {"mysql"}
    assert {on for _, on in run.planned(PAGES["mutants"], "mysql")} == {ALL}
    assert len(list(run.planned(PAGES["core"], None))) == sum(len(part.minutes) for part in PAGES["core"].parts)


@pytest.mark.parametrize(
    ("database", "servers"),
    [("sqlite", "redis"), ("mysql", "mysql,redis"), (ALL, "mysql,mariadb,postgres,redis")],
)
def test_a_part_runs_with_the_servers_of_its_database(database, servers):
    words = run.command(Part("p", {database: 2}, ("tests/test_a.py",), ()), database)
    assert words[1:6] == ["-m", "tests.servers", "run", "--only", servers]
    assert words[-3:] == ["tests/test_a.py", "--timeout", "120"]


def test_a_page_has_a_row_for_each_part_which_the_check_reads():
    results = [
        Result("one", "mysql", "0123456789ab", "2026-11-28", 1.5, [{"says": "S.", "test": "t", "on": "mysql", "n": 1}]),
        Result(
            "one", "sqlite", "0123456789ab", "2026-11-28", 1.0, [{"says": "S.", "test": "t", "on": "sqlite", "n": 1}]
        ),
        Result("two", "sqlite", "ba9876543210", "2026-11-28", 1.0, []),
    ]
    about = Page("core", "What it is.", (), (part_of("one", ""), part_of("three", "")))
    text = page.text_of(about, results)
    assert text.startswith("# Proof: core\n\nCommand: `make prove ISSUE=core`, Python")
    assert "| one | sqlite, mysql | `0123456789ab` | 2026-11-28 | 2.5 |" in text
    assert "Not measured: three on sqlite." in text
    assert [made for *_, made in freshness.PART.findall(text)] == ["0123456789ab", "ba9876543210"]
    assert "## S.\n\n| database | n |\n| --- | --- |\n| mysql, sqlite | 1 |" in text


def test_a_row_that_is_the_same_on_several_databases_stands_there_once():
    lines = [{"says": "S", "test": "t", "on": on, "n": n} for n in (1, "a|b") for on in ("mysql", "sqlite")]
    found = page.tables([*lines, {"says": "S", "test": "t", "on": "mysql", "n": 3}])
    rows = [line for line in found if line.startswith("|")]
    assert rows[2:] == ["| mysql, sqlite | 1 |", "| mysql, sqlite | a\\|b |", "| mysql | 3 |"]


def test_a_test_without_a_sentence_is_named_by_its_name():
    line = {"says": "", "test": "test_it_holds[killed-open]", "on": "mysql", "moments": 3, "kills": 4}
    text = "\n".join(page.tables([line]))
    assert "## It holds.\n" in text
    assert "| mysql | killed, open | moments | 3 |\n| mysql | killed, open | kills | 4 |" in text


def test_pictures_of_figures_stand_below_their_table():
    lines = [{"says": "S", "test": "t", "on": on, "n": 1, "pictures": {"A page": "../img/a.png"}} for on in ("a", "b")]
    text = "\n".join(page.tables(lines))
    assert text.endswith("| a, b | 1 |\n\n![A page](../img/a.png)\n")
    assert "| pictures" not in text


def test_what_is_for_other_pages_is_no_table():
    assert page.tables([{"says": "S", "test": "t", "on": "mysql", "run": {"race": "auction"}}]) == []


def test_a_figure_is_kept_only_if_its_test_passes(tmp_path):
    (tmp_path / "test_figures.py").write_text(
        "def test_good(figure, row):\n    '''Good.'''\n    figure('n', 1)\n    row(of_it=2)\n    row(of_it=3)\n\n\n"
        "def test_bad(figure):\n    '''Bad.'''\n    figure('n', 2)\n    assert False\n"
    )
    out = tmp_path / "figures"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.proofs.figures"]
    env = {**os.environ, "JOBQUEUE_TEST_DB": "sqlite", "JOBQUEUE_PROVE_OUT": str(out), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), str(tmp_path)],
        cwd=ROOT, env=env, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["says"] for line in lines] == ["Good. In detail."] * 2 + ["Good."]
    assert [line.get("of it") for line in lines] == [2, 3, None]
