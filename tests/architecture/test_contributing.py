"""CONTRIBUTING.md lists the folders of the tests, and the files in which a new feature goes."""

from __future__ import annotations

import pytest

from tests.architecture.test_layers import PACKAGE
from tests.docs.markdown import ROOT, code, table

PAGE = ROOT / "CONTRIBUTING.md"
FILES_MAX = 4
WISHES = table(PAGE, "Where does a new X go?")


def test_every_folder_of_tests_is_listed():
    folders = {path.parent for path in (ROOT / "tests").glob("*/*.py")}
    listed = [folder for row in table(PAGE, "The tests") for folder in code(row[0])]
    assert sorted(listed) == sorted(str(folder.relative_to(ROOT)) for folder in folders)


def test_there_are_ten_wishes():
    assert len(WISHES) == 10


@pytest.mark.parametrize(("wish", "files"), WISHES, ids=[row[0] for row in WISHES])
def test_a_wish_names_few_files_that_exist(wish, files):
    named = [text for text in code(files) if "/" in text or text.endswith(".py")]
    assert 0 < len(named) <= FILES_MAX
    for path in named:
        assert (PACKAGE / path).exists(), path
