"""A form shows secrets masked. A masked value that the user does not change keeps its secret."""

import pytest

from jobqueue.masking import MASK, has_mask, mask_value, unmask

STORED = {"password": "x1", "note": "token=x2 of 5", "list": [1, {"pin": 1234}, "pw=x3"], "sk-" + "a1" * 15: 7}
SHOWN = mask_value(STORED)


def test_what_was_left_as_it_was_shown_is_what_is_stored():
    assert has_mask(SHOWN)
    assert unmask(SHOWN, STORED) == STORED


def test_a_change_of_one_value_keeps_the_secrets_of_the_others():
    given = {**SHOWN, "more": True, "list": [2, {"pin": MASK}, "pw=x4", "new"]}
    found = unmask(given, STORED)
    assert found == {**STORED, "more": True, "list": [2, {"pin": 1234}, "pw=x4", "new"]}
    assert not has_mask(found)


@pytest.mark.parametrize("given", [{"other": MASK}, {"list": [1, 2, 3, f"pw={MASK}"]}, {"note": f"token={MASK} of 6"}])
def test_a_mask_where_no_secret_was_shown_stays_and_is_found(given):
    assert has_mask(unmask(given, STORED))


def test_keys_that_become_one_when_they_are_masked_are_not_guessed():
    stored = {"sk-" + "a1" * 15: {"pw": 1}, "sk-" + "b2" * 15: {"pw": 2}}
    shown = mask_value(stored)
    assert len(shown) == 1
    assert has_mask(unmask({**shown, "n": 1}, stored))


def test_a_value_of_another_type_is_not_the_one_that_was_shown():
    assert unmask([True, 1], [1, True]) == [True, 1]
