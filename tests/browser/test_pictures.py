"""The pictures of the pages: taken by one command, small, and exact."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.browser import palette
from tests.browser.screenshots import BYTES_MAX
from tests.patience import patient

ROOT = Path(__file__).parents[2]


def png(pixels, kind, step):
    """A PNG of rows of pixels, each of `step` bytes, with one of PNG's filters."""
    width, rows, above = len(pixels[0]), b"", None
    for row in (b"".join(row) for row in pixels):
        above = above or bytes(len(row))
        guesses = []
        for i in range(len(row)):
            left, corner = (row[i - step], above[i - step]) if i >= step else (0, 0)
            guesses.append(
                palette._guess(kind, left, above[i], corner) if kind in (1, 3, 4) else above[i] * (kind == 2)
            )
        rows += bytes([kind]) + bytes((a - b) & 255 for a, b in zip(row, guesses, strict=True))
        above = row
    header = width.to_bytes(4, "big") + len(pixels).to_bytes(4, "big") + bytes([8, 6 if step == 4 else 2, 0, 0, 0])
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return palette._SIGNATURE + b"".join(palette._chunk(*one) for one in chunks)


def colours(made):
    """The colours of the pixels of a picture with a palette and without filters."""
    table, data = (made.partition(kind)[2] for kind in (b"PLTE", b"IDAT"))
    width, height = palette.size(made)
    rows = zlib.decompressobj().decompress(data)
    places = [rows[y * (width + 1) + 1 + x] for y in range(height) for x in range(width)]
    return [table[3 * place : 3 * place + 3] for place in places]


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("step", [3, 4])
def test_a_picture_keeps_its_pixels(kind, step):
    pixels = [[bytes([40 * x, 90 * y, 7 * x * y, 255])[:step] for x in range(6)] for y in range(3)]
    made = palette.with_palette(png(pixels, kind, step))
    assert colours(made) == [pixel[:3] for row in pixels for pixel in row]


def test_of_too_many_colours_the_nearest_is_taken():
    pixels = [[bytes([x * 8, y * 8, 0]) for x in range(32)] for y in range(32)]
    made = colours(palette.with_palette(png(pixels, 0, 3)))
    assert len(set(made)) <= palette.COLOURS
    wanted = [pixel for row in pixels for pixel in row]
    wrong = [abs(a - b) for one, pixel in zip(made, wanted, strict=True) for a, b in zip(one, pixel, strict=True)]
    assert sum(wrong) / len(wrong) < 90


def test_the_command_takes_a_picture_of_the_demo_shop(browser, tmp_path):
    command = [sys.executable, "-m", "tests.browser.screenshots", "--only", "queue", "--folder", str(tmp_path)]
    env = {
        name: text for name, text in os.environ.items() if name not in ("DJANGO_SETTINGS_MODULE", "JOBQUEUE_TEST_DB")
    }
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=patient(), check=False)
    assert done.returncode == 0, done.stderr
    (picture,) = tmp_path.iterdir()
    assert picture.name == "admin-queue.png"
    made = picture.read_bytes()
    assert palette.size(made)[0] == 1400
    assert 5_000 < len(made) < BYTES_MAX
    assert len(set(colours(made))) > 20
