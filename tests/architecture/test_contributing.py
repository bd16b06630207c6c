"""The pages for contributors list the folders of the tests, and the files in which a new feature goes."""

from __future__ import annotations

from tests.architecture.test_layers import PACKAGE, none_of
from tests.docs.markdown import ROOT, code, table

PAGES = ROOT / "docs" / "contributing"
FILES_MAX = 4
WISHES = table(PAGES / "where-things-go.md", "Where things go")


def test_every_folder_of_tests_is_listed():
    folders = {path.parent for path in (ROOT / "tests").glob("*/*.py")}
    listed = [folder for row in table(PAGES / "tests.md", "The tests") for folder in code(row[0])]
    assert sorted(listed) == sorted(str(folder.relative_to(ROOT)) for folder in folders)


def test_there_are_twelve_wishes():
    assert len(WISHES) == 12


def test_each_question_of_a_review_names_tests_that_exist():
    def offenders():
        for question, *_, tests in table(PAGES / "review.md", "Thirteen questions for a review"):
            named = [text for text in code(tests) if text.endswith(".py")]
            if not named:
                yield f"{question}: no tests"
            yield from (f"{question}: {path} does not exist" for path in named if not (ROOT / "tests" / path).exists())

    none_of(offenders())


def test_each_wish_names_few_files_that_exist():
    def offenders():
        for wish, files in WISHES:
            named = [text for text in code(files) if "/" in text or text.endswith(".py")]
            if not 0 < len(named) <= FILES_MAX:
                yield f"{wish}: {len(named)} files"
            yield from (f"{wish}: {path} does not exist" for path in named if not (PACKAGE / path).exists())

    none_of(offenders())
