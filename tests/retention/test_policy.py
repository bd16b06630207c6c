"""The setting RETENTION: which values it takes, and what a queue has that sets some of it."""

from datetime import timedelta

import pytest

from jobqueue.conf import load, read
from jobqueue.conf.queues import DEFAULT, Kept
from jobqueue.exceptions import WrongSettings
from tests.retention.helpers import DAY


def of(raw, queue="q", **options):
    settings, problems = read({"RETENTION": raw, **options})
    assert problems == []
    return {state: settings.queue_retention(queue, state) for state in DEFAULT}


def test_ended_jobs_are_kept_for_a_week_and_dead_letters_for_three_months():
    settings, _ = read({})
    found = {state: settings.queue_retention("q", state) for state in DEFAULT}
    assert found == {"done": Kept(7 * DAY), "failed": Kept(90 * DAY), "canceled": Kept(7 * DAY)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("12h", Kept(DAY / 2)),
        (60, Kept(60.0)),
        (0, Kept(0.0)),
        ("400d", Kept(400 * DAY)),
        (timedelta(days=2), Kept(2 * DAY)),
        (None, Kept()),
        ({"AGE": "1d"}, Kept(DAY)),
        ({"KEEP": 100}, Kept(None, 100)),
        ({"AGE": None, "KEEP": 5}, Kept(None, 5)),
        ({"AGE": "1d", "KEEP": 5, "ARCHIVE": True}, Kept(DAY, 5, archive=True)),
    ],
)
def test_a_state_has_an_age_a_number_both_or_none(value, expected):
    assert of({"done": value})["done"] == expected


def test_a_state_that_is_left_out_has_its_default():
    assert of({"done": None}) == {**DEFAULT, "done": Kept()}


def test_none_keeps_everything():
    assert of(None) == dict.fromkeys(DEFAULT, Kept())


def test_a_queue_sets_some_states_and_has_the_others_as_all_queues():
    queues = {"bulk": {"RETENTION": {"done": "1h"}}, "audit": {"RETENTION": None}}
    assert of({"failed": "1d"}, "bulk", QUEUES=queues) == {
        "done": Kept(3600.0),
        "failed": Kept(DAY),
        "canceled": DEFAULT["canceled"],
    }
    assert of({"failed": "1d"}, "audit", QUEUES=queues) == dict.fromkeys(DEFAULT, Kept())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "RETENTION must be a dict, or None"),
        ({"dne": "7d"}, "RETENTION: unknown state 'dne' (did you mean 'done'?)"),
        ({"ready": "7d"}, "RETENTION: unknown state 'ready' (states: done, failed, canceled)"),
        ({"done": "7 days"}, "RETENTION['done'] is wrong: '7 days' is not a duration"),
        ({"done": -1}, "RETENTION['done'] must be a duration such as '7d', a dict with AGE or KEEP, or None, is -1"),
        ({"done": True}, "RETENTION['done'] must be a duration"),
        ({"done": float("nan")}, "RETENTION['done'] must be a duration"),
        ({"done": {}}, "RETENTION['done'] must be a duration"),
        ({"done": {"ARCHIVE": True}}, "RETENTION['done'] must be a duration"),
        ({"done": {"AGE": "7d", "KEPT": 5}}, "RETENTION['done'] has the unknown key 'KEPT' (did you mean 'KEEP'?)"),
        ({"done": {"KEEP": 0}}, "RETENTION['done'] must have a KEEP that is an int from 1"),
        ({"done": {"AGE": "7d", "ARCHIVE": 1}}, "RETENTION['done'] must have an ARCHIVE that is True or False"),
    ],
)
def test_a_wrong_value_is_told(settings, raw, message):
    settings.JOBQUEUE = {"RETENTION": raw}
    with pytest.raises(WrongSettings) as caught:
        load()
    assert message in str(caught.value)


def test_a_wrong_value_of_a_queue_is_told_with_its_queue(settings):
    settings.JOBQUEUE = {"QUEUES": {"mail": {"RETENTION": {"done": "x"}}}}
    with pytest.raises(WrongSettings, match=r"QUEUES\['mail'\]: RETENTION\['done'\] is wrong: 'x' is not a duration"):
        load()
