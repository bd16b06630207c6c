"""A note on a fingerprint is shown with all failures of the kind, now and later."""

from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue.dead_letters import fingerprints, note, notes, redrive
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.models import FailureNote, Job
from jobqueue.transitions import discard, fail
from tests.dead_letters.test_redrive import carry_out, dead
from tests.factories import claim_one, job, set_columns

pytestmark = pytest.mark.django_db

KIND = "0123456789abcdef"


def test_a_note_is_shown_with_the_group_of_its_fingerprint():
    (one,) = dead(error=ValueError("x"))
    dead(error=ConnectionError("x"))
    assert note(job(one).fingerprint, "the card was declined;\nask ann", by="bob") is True
    mine, other = sorted(fingerprints(), key=lambda group: group.fingerprint != job(one).fingerprint)
    assert (mine.note, mine.note_by) == ("the card was declined;\nask ann", "bob")
    assert mine.note_updated_at.tzinfo is not None
    assert (other.note, other.note_by, other.note_updated_at) == ("", "", None)


def test_it_survives_redrives_discards_and_deleted_jobs_and_is_there_for_the_next_failure():
    ids = dead(3)
    kind = job(ids[0]).fingerprint
    note(kind, "known")
    redrive(job_ids=ids[:1])
    carry_out()
    assert discard(ids[1])
    Job.objects.filter(pk=ids[2]).delete()
    assert fingerprints() == []
    assert [(one.fingerprint, one.text) for one in notes()] == [(kind, "known")]
    set_columns(ids[0], max_attempts=1)
    fail(claim_one(), error=ValueError("x"), retry=False)
    assert [group.note for group in fingerprints()] == ["known"]


def test_the_newest_text_replaces_the_one_before_by_the_clock_of_the_database():
    note(KIND, "one", by="ann")
    FailureNote.objects.update(updated_at="2001-01-01T00:00:00Z")
    note(KIND, "two")
    (found,) = notes()
    assert (found.text, found.by) == ("two", "")
    (created,) = Job.objects.filter(pk__in=dead()).values_list("created_at", flat=True)
    assert abs(found.updated_at - created) < timedelta(minutes=5)


def test_an_empty_text_removes_it():
    note(KIND, "one")
    assert note(KIND, " \n ") is True
    assert notes() == []
    assert note(KIND, "") is False


def test_notes_are_listed_by_their_newest_change():
    for number, kind in enumerate(("1" * 16, "2" * 16, "3" * 16)):
        note(kind, str(number))
        FailureNote.objects.filter(pk=kind).update(updated_at=f"2020-01-0{number + 1}T00:00:00Z")
    assert [one.text for one in notes()] == ["2", "1", "0"]
    assert [one.text for one in notes(limit=1)] == ["2"]


@pytest.mark.parametrize(
    "text", ["émile \U0001f600 한국어", "'; DROP TABLE x; -- %s %% {row} `", "x" * 2000, "é" * 2000]
)
def test_any_text_is_kept_as_it_is(text):
    note(KIND, text, by="Žofie \U0001f600")
    note(KIND, text, by="Žofie \U0001f600")
    (found,) = notes()
    assert (found.text, found.by) == (text, "Žofie \U0001f600")


def test_spaces_around_it_are_left_out():
    note(KIND, "  see the wiki \n", by=" ann ")
    assert [(one.text, one.by) for one in notes()] == [("see the wiki", "ann")]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((KIND, "x" * 2001), InvalidValue, "2001 characters; allowed are 2000"),
        ((KIND, "x", "y" * 151), InvalidValue, "by has 151 characters; allowed are 150"),
        ((KIND, "a\x00b"), InvalidValue, "NUL"),
        ((KIND, "a\ud800"), InvalidValue, "surrogate"),
        ((KIND, 7), InvalidType, "text of a note must be a str"),
        ((KIND, "x", None), InvalidType, "by must be a str"),
        ((KIND.upper(), "x"), InvalidValue, "16 hexadecimal digits"),
        ((7, "x"), InvalidType, "fingerprint"),
        ((None, "x"), InvalidType, "fingerprint"),
    ],
)
def test_a_wrong_note_is_refused_before_anything_is_written(given, error, words):
    note(KIND, "before")
    kind, text, *by = given
    with pytest.raises(error, match=words):
        note(kind, text, **({"by": by[0]} if by else {}))
    assert [one.text for one in notes()] == ["before"]


def test_a_rolled_back_note_does_not_exist():
    note(KIND, "before")
    with transaction.atomic():
        note(KIND, "after")
        note("f" * 16, "another")
        transaction.set_rollback(True)
    assert [one.text for one in notes()] == ["before"]


def test_the_groups_cost_one_statement_more_for_their_notes(django_assert_num_queries):
    dead()
    dead(error=ConnectionError("x"))
    fingerprints()
    # The groups, the newest attempts of their samples, their notes.
    with django_assert_num_queries(3):
        fingerprints()
