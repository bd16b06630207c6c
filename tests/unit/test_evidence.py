"""Pages of evidence: what makes them stale, and which figures get into them."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.launch import ROOT
from tests.proofs import freshness, parts_page, report

PATHS = ("code",)
WORKS = '"""What it does."""\n\nimport os\n\n\ndef double(n):\n    """Twice n."""\n    return 2 * n\n'


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A function that commits {path: text, or None to delete it} and returns the new commit."""
    who = {f"GIT_{role}_{what}": "nobody@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for name, value in who.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(freshness, "ROOT", tmp_path)
    freshness.changes.cache_clear()
    freshness.git("init", "--quiet")

    def commit(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.unlink() if text is None else path.write_text(text)
        freshness.git("add", "--all")
        freshness.git("commit", "--quiet", "--allow-empty", "--message", "Change it")
        return freshness.git("rev-parse", "HEAD").strip()

    commit({"README.md": "empty"})
    yield commit
    freshness.changes.cache_clear()


def test_a_change_of_code_makes_a_page_stale(repository):
    made_on = repository({"code/a.py": WORKS})
    change = repository({"code/a.py": WORKS.replace("2 *", "3 *")})
    repository({"other/b.py": WORKS})
    assert freshness.commits_since(made_on, PATHS) == [change]
    assert freshness.of_page(f"commit `{made_on[:12]}`", PATHS) == (made_on[:12], 1)


def test_moves_comments_docstrings_and_imports_do_not(repository):
    made_on = repository({"code/a.py": WORKS})
    repository({"code/a.py": None, "code/b.py": WORKS})
    repository({"code/b.py": WORKS.replace("Twice n.", "Return twice n.").replace("import os", "import sys  # new")})
    assert freshness.commits_since(made_on, PATHS) == []


def test_a_change_that_was_taken_back_does_not(repository):
    made_on = repository({"code/a.py": WORKS})
    repository({"code/a.py": WORKS.replace("2 *", "3 *")})
    repository({"code/a.py": WORKS})
    assert freshness.commits_since(made_on, PATHS) == []


def test_files_that_are_no_python_and_new_or_deleted_ones_count(repository):
    made_on = repository({"code/a.sh": "true", "code/b.py": WORKS})
    changes = [repository(files) for files in ({"code/a.sh": "false"}, {"code/c.py": WORKS}, {"code/b.py": None})]
    assert freshness.commits_since(made_on, PATHS) == changes[::-1]


def test_of_several_commits_of_a_page_the_one_that_most_has_changed_since_counts(repository):
    first = repository({"code/a.py": WORKS})
    second = repository({"code/a.py": WORKS.replace("2 *", "3 *")})
    assert freshness.of_page(f"commit {second[:7]}, commit {first[:7]}", PATHS) == (first[:7], 1)


def test_a_commit_that_the_repository_does_not_have_is_told(repository):
    assert freshness.of_page("commit `0123456789ab`", PATHS) == ("0123456789ab", None)


def test_a_page_that_is_missing_fails_the_check_of_a_release(repository, monkeypatch, capsys):
    monkeypatch.setattr(freshness, "PROVED", {"docs/proof/core.md": PATHS})
    assert (freshness.main([]), freshness.main(["--fail"])) == (0, 1)
    assert "docs/proof/core.md: not made yet" in capsys.readouterr().out


def test_a_page_of_a_small_run_fails_the_check_of_a_release(repository, monkeypatch, capsys):
    made_on = repository({"code/a.py": WORKS})
    (freshness.ROOT / "page.md").write_text(f"`JOBQUEUE_PROVE_SMALL=1 make prove ISSUE=demo`, commit {made_on}")
    monkeypatch.setattr(freshness, "PROVED", {"page.md": PATHS})
    assert (freshness.main([]), freshness.main(["--fail"])) == (0, 1)
    assert "page.md: made by a small run" in capsys.readouterr().out


def test_every_path_that_a_page_proves_exists():
    paths = {path for paths in freshness.PROVED.values() for path in paths}
    assert [path for path in paths if not list(ROOT.glob(f"{path.rstrip('/')}*"))] == []


def test_each_issue_of_make_prove_has_a_page_whose_age_is_known():
    script = (ROOT / "scripts" / "prove.sh").read_text()
    known, without_one = re.search(r"known: (.+)\"", script), re.search(r"for each in ([a-z ]+); do", script)
    pages = {path.removeprefix("docs/proof/").removesuffix(".md") for path in freshness.PROVED if "proof/" in path}
    assert pages == set(known[1].split(", ")) == set(without_one[1].split())


def test_a_row_that_is_the_same_on_several_databases_is_printed_once(capsys):
    lines = [{"says": "S", "test": "t", "on": on, "n": n} for n in (1, "a|b") for on in ("mysql", "sqlite")]
    report.print_page("core", [*lines, {"says": "S", "test": "t", "on": "mysql", "n": 3}])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert rows[2:] == ["| mysql, sqlite | 1 |", "| mysql, sqlite | a\\|b |", "| mysql | 3 |"]


@pytest.fixture
def parts(tmp_path):
    """A function that writes a file of figures for each (commit, database, part), and returns their paths."""

    folder = tmp_path / "parts"
    folder.mkdir()

    def write(*made):
        for commit, on, part in made:
            line = {"says": f"About {part}.", "test": "t", "on": on, "n": commit[0]}
            (folder / f"flow-{commit}-{on}-{part}").write_text(json.dumps(line) + "\n")
        return [str(path) for path in sorted(folder.iterdir())]

    return write


def test_a_test_without_a_sentence_is_named_by_its_name(capsys):
    line = {"says": "", "test": "test_it_holds[killed-open]", "on": "mysql", "moments": 3, "kills": 4}
    report.print_page("core", [line])
    page = capsys.readouterr().out
    assert "## It holds.\n" in page
    assert "| mysql | killed, open | moments | 3 |\n| mysql | killed, open | kills | 4 |" in page


def test_a_page_of_parts_names_the_commit_of_their_files(parts, capsys):
    parts_page.main("flow", "", *parts(("a" * 12, "mysql", "rates"), ("a" * 12, "sqlite", "rates")))
    page = capsys.readouterr().out
    assert f"Command: `make prove ISSUE=flow`, commit `{'a' * 12}`, Python" in page
    assert "different commits" not in page
    assert "| sqlite, mysql | a |" in page


def test_a_page_of_parts_of_several_commits_says_which_part_is_of_which(parts, capsys):
    one, two = "a" * 12, "b" * 12
    files = parts((one, "mysql", "rates"), (one, "sqlite", "rates"), (one, "mysql", "pause"), (two, "sqlite", "pause"))
    parts_page.main("flow", "", *files)
    page = capsys.readouterr().out
    assert freshness.COMMIT.findall(next(line for line in page.splitlines() if "Command" in line)) == [one, two]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{one}` | mysql | pause |",
        f"| `{one}` | sqlite, mysql | rates |",
        f"| `{two}` | sqlite | pause |",
    ]


def test_of_a_part_of_two_commits_the_newer_one_is_on_the_page(repository, parts, capsys):
    older, newer = (repository({"a.py": text})[:12] for text in ("a = 1", "a = 2"))
    parts_page.main("flow", "", *parts((older, "mysql", "rates"), (newer, "mysql", "rates")))
    page = capsys.readouterr().out
    assert f"commit `{newer}`" in page
    assert older not in page


def test_parts_that_were_broken_off_or_measured_nothing_are_not_on_the_page(parts, tmp_path, capsys):
    files = parts(("a" * 12, "mysql", "rates"))
    for name in (f"flow-{'b' * 12}-mysql-pause.part", f"flow-{'c' * 12}-sqlite-pause"):
        (tmp_path / name).touch()
        files.append(str(tmp_path / name))
    parts_page.main("flow", "", *files)
    page = capsys.readouterr().out
    assert f"commit `{'a' * 12}`, Python" in page
    assert "pause" not in page


def test_pictures_of_figures_stand_below_their_table(capsys):
    lines = [{"says": "S", "test": "t", "on": on, "n": 1, "pictures": {"A page": "../img/a.png"}} for on in ("a", "b")]
    report.print_page("core", lines)
    page = capsys.readouterr().out
    assert page.endswith("| a, b | 1 |\n\n![A page](../img/a.png)\n\n")
    assert "| pictures" not in page


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
