"""The tutorial is carried out: a new project on SQLite, a real worker, a real kill."""

import re

import pytest

from tests.docs.markdown import PAGES, ROOT, name, pieces
from tests.docs.reader import Reader
from tests.settings import VENDOR

TUTORIALS = [page for page in PAGES if "tutorial" in page.parts]


@pytest.mark.skipif(VENDOR != "sqlite", reason="the tutorials use SQLite")
@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_the_tutorial_works(page, tmp_path, say):
    reader = Reader(tmp_path)
    try:
        for piece in pieces(page):
            reader.take(piece)
    finally:
        reader.end()
    assert reader.first_job_seconds, "the page does not say where its first job is done"
    say(f"the tutorial's first job was done {reader.first_job_seconds:.1f} s after startproject")


@pytest.mark.skipif(VENDOR != "sqlite", reason="once")
def test_the_picture_is_a_small_png_of_1280_pixels():
    picture = ROOT / "docs" / "img" / "tutorial-jobs.png"
    head = picture.read_bytes()[:24]
    assert re.match(rb"\x89PNG\r\n", head)
    assert int.from_bytes(head[16:20], "big") == 1280
    assert picture.stat().st_size < 150_000
