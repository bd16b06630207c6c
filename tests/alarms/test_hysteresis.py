"""When an alarm begins and ends."""

import itertools
import random

from jobqueue.alarms.looking import LOOKS, Standing, after_look


def run(values, threshold=100, name="ready", standing=None, in_a_row=True):
    """Whether the alarm fires after each look."""
    standing, found = standing or Standing(), []
    for value in values:
        standing = after_look(standing, name, value, threshold, in_a_row=in_a_row)
        found.append(standing.firing)
    return found


def test_it_begins_with_two_looks_in_a_row_at_the_threshold_or_above():
    assert run([100, 100]) == [False, True]
    assert run([100, 99, 100, 99, 100]) == [False] * 5
    assert run([99.9, 99.9, 99.9]) == [False] * 3


def test_it_ends_with_two_looks_in_a_row_below_80_percent():
    fires = Standing(firing=True)
    assert run([79, 79], standing=fires) == [True, False]
    assert run([79, 80, 79, 85, 79], standing=fires) == [True] * 5


def test_a_minimum_begins_below_it_and_ends_above_125_percent():
    name = "throughput_per_minute"
    assert run([99, 99, 125, 125, 126, 126], name=name) == [False, True, True, True, True, False]
    assert run([100, 100, 100], name=name) == [False] * 3


def test_looks_that_are_too_far_apart_are_not_in_a_row():
    assert run([500, 500, 500], in_a_row=False) == [False] * 3
    assert run([0, 0, 0], standing=Standing(firing=True), in_a_row=False) == [True] * 3


def test_a_value_that_swings_around_the_threshold_changes_nothing_again_and_again():
    chance = random.Random(1)
    swings = [100 + chance.uniform(-19, 19) for _ in range(1000)]
    for values in (swings, [130, 99] * 500, [101, 81] * 500):
        states = run(values)
        changes = sum(before != after for before, after in itertools.pairwise(states))
        assert changes <= 1


def test_one_silent_worker_is_enough_and_none_ends_it():
    assert run([1, 1, 0, 0], threshold=1, name="silent") == [False, True, True, False]
    assert LOOKS == 2
