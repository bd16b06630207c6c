"""Durations as people type them."""

import pytest

from jobqueue.base.durations import format_seconds, parse_seconds
from jobqueue.exceptions import InvalidValue


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("2m", 120), ("1h", 3600), ("7", 7), ("0.5", 0.5), ("1.5s", 1.5), (" 3s ", 3)],
)
def test_a_duration_is_a_number_and_a_unit_and_a_bare_number_means_seconds(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "-1s",
        "+1s",
        "1 s",
        "1x",
        "1e3",
        "nan",
        "inf",
        "1,5s",
        "\u0661s",
        "1s1s",
        "--1",
        "\N{EN DASH}1s",
        "1_000",
        "9" * 40,
        ".5s",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidValue):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["0", "0s", "0ms", "0.0h"])
def test_zero_is_refused_where_it_makes_no_sense(text):
    with pytest.raises(InvalidValue, match="above 0"):
        parse_seconds(text)
    assert parse_seconds(text, zero=True) == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.038, "38ms"), (1.2, "1.2s"), (5, "5s"), (250, "4m 10s"), (7500, "2h 5m"), (273600, "3d 4h"), (0, "0ms")],
)
def test_a_duration_reads_short(seconds, text):
    assert format_seconds(seconds) == text
