"""make bench-check tells a loss from noise, and compares the commits that it says."""

from __future__ import annotations

import pytest

from benchmarks import check
from benchmarks.check import Interval, Side, compare, interval

HERE = {"rev-parse HEAD": "h", "rev-parse HEAD~1": "before"}
MAIN = "rev-parse --verify --quiet main"


def test_the_interval_leaves_out_the_extremes_that_a_coin_leaves_out():
    assert interval([0.5, 0.9, 1.0, 1.1, 1.2, 9.0]) == (0.5, 1.05, 9.0)
    assert interval([n / 10 for n in range(1, 16)]) == (0.4, 0.8, 1.2)


def test_too_few_pairs_show_nothing():
    with pytest.raises(ValueError, match="6 are the least"):
        interval([0.5] * 5)


@pytest.mark.parametrize(
    ("ratios", "lost"),
    [
        ([0.90] * 8, True),
        ([0.96] * 8, False),
        ([0.80, 0.85, 0.90, 0.94, 0.90, 0.88, 1.01, 0.89], False),
        ([0.80, 0.85, 0.90, 0.94, 0.90, 0.88, 1.01, 0.89, 0.90, 0.87], True),
    ],
    ids=["a loss", "a small loss", "a loss or noise", "more pairs"],
)
def test_only_what_no_noise_explains_is_a_loss(ratios, lost):
    assert interval(ratios).is_loss == lost


def test_a_gain_is_no_loss():
    assert not Interval(1.2, 1.3, 1.4).is_loss


@pytest.mark.parametrize(
    ("git", "base"),
    [
        ({MAIN: "m", "merge-base HEAD main": "m"}, "m"),
        ({MAIN.replace("main", "origin/main"): "m", "merge-base HEAD origin/main": "m"}, "m"),
        ({MAIN: "h", "merge-base HEAD main": "h"}, "before"),
        ({MAIN: "h", "merge-base HEAD main": "h", "status --porcelain -- jobqueue": " M jobqueue/checks.py"}, "h"),
        ({}, "before"),
    ],
    ids=["a branch", "a clone", "main", "main with changed files", "no main"],
)
def test_the_base_is_main_or_what_was_there_before_the_last_change(git, base, monkeypatch):
    monkeypatch.setattr(check, "_git", lambda *words: (HERE | git).get(" ".join(words), ""))
    assert check.default_base() == base


def test_both_sides_are_measured_in_turn(monkeypatch):
    asked = []

    class Fake:
        def __init__(self, name, rate):
            self.name, self.rate = name, rate

        def measure(self, what):
            asked.append(self.name)
            return self.rate

    found = compare(Fake("old", 100.0), Fake("new", 90.0), 0, 2)
    assert found == {"enqueue": [0.9, 0.9], "drain": [0.9, 0.9]}
    assert asked[4:] == ["old", "new", "old", "new", "new", "old", "new", "old"]


def test_two_versions_enqueue_and_drain(tmp_path):
    sides = [Side(tmp_path, name, "sqlite", 50) for name in ("old", "new")]
    for side in sides:
        side.take("")
        side.start()
    try:
        assert all(side.measure(what) > 0 for side in sides for what in check.MEASURES)
    finally:
        for side in sides:
            side.close()
    assert not list(tmp_path.glob("*/*.sqlite3"))
