"""What is to be told, and how far it was told."""

from datetime import UTC, datetime, timedelta

import pytest

from jobqueue.alarms import Alarm, delivery
from jobqueue.alarms.delivery import Notice, decode, encode, note_failed, note_told, take_due

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FIRES = Alarm("mail", "ready", 200.0, 100.0, AT, 1)
OVER = Alarm("mail", "ready", 10.0, 100.0, AT, 1, AT + timedelta(minutes=5))


@pytest.fixture
def pending():
    return [Notice.of(FIRES, AT, ["log", "mail"]), Notice.of(OVER, AT + timedelta(minutes=5), ["log", "mail"])]


def later(seconds):
    return AT + timedelta(minutes=10, seconds=seconds)


def test_notices_are_read_as_they_were_written(pending):
    pending.append(Notice.of(Alarm("", "silent", 1.0, 1.0, AT, 1, about=("vm1:7:child-1",)), AT, ["log"]))
    assert decode(encode(pending[:2]), "mail", "ready") == pending[:2]
    assert decode(encode(pending[2:]), "", "silent") == pending[2:]
    assert decode(None, "mail", "ready") == decode(["?"], "mail", "ready") == []


def test_the_end_is_told_after_the_beginning(pending):
    assert take_due(pending, later(0), ["log"]) == (pending[0], "log")
    # Another process, or this one before it knows the outcome, takes nothing for the same recipient.
    assert take_due(pending, later(1), ["log"]) is None
    note_told(pending, pending[0], "log")
    assert take_due(pending, later(1), ["log"]) == (pending[1], "log")
    assert delivery.next_at(pending) == AT


def test_a_try_without_an_outcome_is_repeated_and_no_other_one(pending):
    note_told(pending, pending[0], "mail")
    assert take_due(pending, later(0), ["log"]) == (pending[0], "log")
    assert take_due(pending, later(delivery.TRY_SECONDS - 1), ["log"]) is None
    assert take_due(pending, later(delivery.TRY_SECONDS), ["log"]) == (pending[0], "log")
    assert pending[0].pending["log"].tries == 2


def test_one_that_fails_is_tried_again_and_the_others_are_not(pending):
    pauses = []
    for number in range(8):
        at = later(10_000 * number)
        assert take_due(pending, at, ["log"]) == (pending[0], "log")
        note_failed(pending, pending[0], "log", "no answer", at)
        pauses.append((pending[0].pending["log"].again_at - at).total_seconds())
    assert 10 < pauses[0] < 20
    assert max(pauses) <= 900
    assert pauses[-1] > 300
    assert pending[0].pending["log"].error == "no answer"
    assert pending[0].pending["mail"].tries == 0


def test_a_notice_that_everybody_was_told_is_gone(pending):
    for key in ("log", "mail"):
        note_told(pending, pending[0], key)
    assert [notice.alarm for notice in pending] == [OVER]
    for key in ("log", "mail"):
        note_told(pending, pending[0], key)
    assert pending == []
    assert delivery.next_at(pending) is None


def test_nobody_is_told_what_is_a_day_old_and_a_row_keeps_few(pending):
    assert delivery.drop_old(pending, AT + timedelta(days=1, minutes=1)) == [Notice.of(FIRES, AT, ["log", "mail"])]
    many = [Notice.of(FIRES, AT + timedelta(seconds=number), ["log"]) for number in range(30)]
    dropped = delivery.drop_old(many, AT + timedelta(minutes=1))
    assert (len(many), len(dropped)) == (delivery.NOTICES_MAX, 10)
    assert many[-1].at == AT + timedelta(seconds=29)
