"""Pages of evidence and the figures that quote them: what makes them stale, and what CI says of that."""

import pytest

from tests.proofs import freshness
from tests.proofs.model import Page, Part

PATHS = ("code",)
WORKS = '"""What it does."""\n\nimport os\n\n\ndef double(n):\n    """Twice n."""\n    return 2 * n\n'
BROKEN = WORKS.replace("2 *", "3 *")
ONE, OTHER = (Part(name, {"sqlite": 1}, (f"tests/test_{name}.py",), ()) for name in ("one", "other"))
PAGE = Page("core", "About.", PATHS, (ONE, OTHER))
BENCH = Page("benchmarks", "About.", PATHS, (), writer="benchmarks", path="docs/benchmarks.md")


@pytest.fixture
def commit(tmp_path, monkeypatch):
    """A function that commits {path: text, or None to delete it} and returns the new commit."""
    who = {f"GIT_{role}_{what}": "nobody@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for name, value in who.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(freshness, "ROOT", tmp_path)
    monkeypatch.setattr(freshness, "PAGES", {page.name: page for page in (PAGE, BENCH)})
    freshness.git("init", "--quiet")

    def commit(files):
        freshness.changes.cache_clear()
        freshness._since.cache_clear()
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if text is None else path.write_text(text)
        freshness.git("add", "--all")
        freshness.git("commit", "--quiet", "--allow-empty", "--message", "Change it")
        return freshness.git("rev-parse", "HEAD").strip()

    commit({"code/a.py": WORKS, "tests/test_one.py": WORKS, "tests/test_other.py": WORKS})
    yield commit
    freshness.changes.cache_clear()
    freshness._since.cache_clear()


@pytest.fixture
def made_on(commit):
    """The commit before the others of a test."""
    return freshness.git("rev-parse", "HEAD").strip()


@pytest.fixture
def check(capsys):
    """check(): the statuses of `make proofs` and of `make release-check`, and what the former prints."""

    def check():
        statuses = freshness.main([]), freshness.main(["--release"])
        return statuses, capsys.readouterr().out

    return check


def page_of(**commits):
    """A page whose parts were measured on these commits."""
    return "".join(f"| {part} | sqlite | `{commit[:12]}` | 2026-11-28 | 1.0 |\n" for part, commit in commits.items())


def bench_of(commit):
    """The page of benchmarks: each table names its commit."""
    return f"**MySQL** (2026-11-28 10:00 UTC, commit {commit[:12]}, size `quick`, load 0.0 before)\n"


def quoting(page, commit, words="**7,000** jobs a second"):
    """A page of docs that quotes a figure."""
    return f"# A page\n\n<!-- figure: {page}{f' {commit[:12]}' if commit else ''} -->\n{words}\n<!-- figure: end -->\n"


def test_a_change_of_code_counts(commit, made_on):
    change = commit({"code/a.py": BROKEN})
    commit({"other/b.py": WORKS})
    assert freshness.commits_since(made_on, PATHS) == [change]


def test_a_folder_of_a_longer_name_is_another_folder(commit, made_on):
    commit({"code_of_others/a.py": WORKS, "code.py": WORKS})
    assert freshness.commits_since(made_on, PATHS) == []


def test_moves_comments_docstrings_and_imports_do_not_count(commit, made_on):
    before = freshness.fingerprint(PATHS)
    commit({"code/a.py": None, "code/b.py": WORKS})
    commit({"code/b.py": WORKS.replace("Twice n.", "Return twice n.").replace("import os", "import sys  # new")})
    assert freshness.commits_since(made_on, PATHS) == []
    assert freshness.fingerprint(PATHS) == before


def test_a_change_that_was_taken_back_does_not_count(commit, made_on):
    commit({"code/a.py": BROKEN})
    commit({"code/a.py": WORKS})
    assert freshness.commits_since(made_on, PATHS) == []


def test_files_that_are_no_python_and_new_or_deleted_ones_count(commit):
    made_on = commit({"code/a.sh": "true"})
    changes = [commit(files) for files in ({"code/a.sh": "false"}, {"code/c.py": WORKS}, {"code/a.py": None})]
    assert freshness.commits_since(made_on, PATHS) == changes[::-1]


def test_what_is_kept_of_a_run_is_no_longer_taken_after_a_change_that_counts(commit, made_on):
    before = freshness.fingerprint(PATHS)
    commit({"code/a.py": BROKEN})
    assert freshness.fingerprint(PATHS) != before


def test_a_missing_page_fails_the_check_of_a_release_and_not_ci(commit, check):
    statuses, printed = check()
    assert statuses == (0, 1)
    assert "docs/proof/core.md: not made yet\ndocs/benchmarks.md: not made yet\nno stale page or figure" in printed


def test_pages_as_old_as_what_they_prove_pass_both_checks(commit, made_on, check):
    pages = {"docs/proof/core.md": page_of(one=made_on, other=made_on), "docs/benchmarks.md": bench_of(made_on)}
    commit(pages | {"docs/page.md": quoting("docs/benchmarks.md", made_on)})
    statuses, printed = check()
    assert statuses == (0, 0)
    assert printed.endswith("docs/page.md:3, a figure of docs/benchmarks.md: fresh\nno stale page or figure\n")


@pytest.mark.parametrize("page", ["docs/proof/core.md", "docs/benchmarks.md"])
def test_a_stale_page_fails_both_checks(commit, made_on, check, page):
    commit({page: page_of(one=made_on, other=made_on) if "proof" in page else bench_of(made_on)})
    commit({"code/a.py": BROKEN})
    statuses, printed = check()
    assert statuses == (1, 1)
    assert f"commit {made_on[:12]}, 1 commits since change what it proves" in printed
    assert "1 stale pages and figures" in printed


def test_each_part_of_a_page_is_judged_by_its_own_commit_and_tests(commit, made_on, check):
    later = commit({"tests/test_one.py": BROKEN})
    commit({"docs/proof/core.md": page_of(one=later, other=made_on)})
    assert check()[0] == (0, 1), "the benchmarks are missing"
    commit({"docs/proof/core.md": page_of(one=made_on, other=later)})
    statuses, printed = check()
    assert statuses == (1, 1)
    assert f"docs/proof/core.md: stale: one, commit {made_on[:12]}, 1 commits since" in printed
    assert "other, commit" not in printed


def test_a_page_without_one_of_its_parts_fails_the_check_of_a_release_only(commit, made_on, check):
    commit({"docs/proof/core.md": page_of(one=made_on), "docs/benchmarks.md": bench_of(made_on)})
    statuses, printed = check()
    assert statuses == (0, 1)
    assert "docs/proof/core.md: fresh, and these parts were not made yet: other on sqlite" in printed


def test_a_part_that_nobody_proves_any_more_makes_its_page_stale(commit, made_on, check):
    commit({"docs/proof/core.md": page_of(one=made_on, former=made_on)})
    statuses, printed = check()
    assert statuses[0] == 1
    assert "nobody proves former on sqlite any more" in printed


def test_a_page_of_a_commit_that_did_not_lead_here_is_stale(commit, check):
    commit({"docs/proof/core.md": page_of(one="0123456789ab")})
    statuses, printed = check()
    assert statuses[0] == 1
    assert "commit 0123456789ab is not among those that lead to this one" in printed


@pytest.mark.parametrize("text", ["# Proof\n\nWithout a commit.\n", ""])
def test_a_page_that_names_no_commit_is_stale(commit, check, text):
    commit({"docs/proof/core.md": text})
    assert check()[0][0] == 1


def test_a_file_among_the_pages_that_nothing_makes_is_stale(commit, check):
    commit({"docs/proof/parts/old": "1", "docs/proof/index.md": "# The list\n"})
    statuses, printed = check()
    assert statuses[0] == 1
    assert "docs/proof/parts/old: stale: nothing in tests/proofs/table.py makes it" in printed
    assert "index.md" not in printed


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        (lambda made_on: quoting("docs/proof/core.md", made_on), "stale, as its page is not there"),
        (lambda made_on: quoting("docs/benchmarks.md", "f" * 12), f"it quotes commit {'f' * 12}, of which"),
        (lambda made_on: quoting("docs/benchmarks.md", ""), "it quotes commit None, of which"),
        (lambda made_on: quoting("docs/proof/other.md", made_on), "stale: nothing in tests/proofs/table.py makes it"),
        (lambda made_on: "<!-- figure: docs/benchmarks.md -->\n\nNo end.\n", "has no other end"),
        (lambda made_on: "7,000 jobs\n<!-- figure: end -->\n", "has no other end"),
    ],
    ids=["no page", "page made anew", "no commit", "no such page", "no end", "no beginning"],
)
def test_a_stale_figure_fails_both_checks(commit, made_on, check, figure, says):
    commit({"docs/benchmarks.md": bench_of(made_on), "docs/page.md": figure(made_on)})
    statuses, printed = check()
    assert statuses == (1, 1)
    assert says in printed


def test_the_figure_of_a_stale_page_is_stale(commit, made_on, check):
    commit({"docs/benchmarks.md": bench_of(made_on), "README.md": quoting("docs/benchmarks.md", made_on)})
    commit({"code/a.py": BROKEN})
    assert "README.md:3, a figure of docs/benchmarks.md: stale, as its page is stale" in check()[1]


def test_an_empty_figure_fails_the_check_of_a_release_only(commit, made_on, check):
    pages = {"docs/proof/core.md": page_of(one=made_on, other=made_on), "docs/benchmarks.md": bench_of(made_on)}
    commit(pages | {"docs/page.md": quoting("docs/benchmarks.md", "", words="")})
    statuses, printed = check()
    assert statuses == (0, 1)
    assert "docs/page.md:3, a figure of docs/benchmarks.md: nothing is quoted yet" in printed


def test_what_is_stale_can_be_removed_at_once(commit, made_on, check, tmp_path):
    pages = {"docs/proof/core.md": page_of(one=made_on), "docs/benchmarks.md": bench_of(made_on)}
    figures = quoting("docs/benchmarks.md", made_on) + quoting("docs/proof/core.md", made_on, "7 of 7")
    later = commit({"tests/test_one.py": BROKEN, "docs/proof/parts/old": "1"} | pages | {"docs/page.md": figures})
    assert check()[0] == (1, 1)
    freshness.remove()
    assert check()[0] == (0, 1)
    left = (tmp_path / "docs/page.md").read_text()
    assert "**7,000**" in left, "its page is fresh"
    assert "<!-- figure: docs/proof/core.md -->\n<!-- figure: end -->\n" in left
    assert sorted(path.name for path in (tmp_path / "docs").rglob("*.md")) == ["benchmarks.md", "page.md"]
    assert freshness.git("rev-parse", "HEAD").strip() == later
