"""manage.py jobs note, and notes in jobs list --groups and jobs show."""

import json

import pytest
from django.core.management import CommandError

from jobqueue.dead_letters import note, notes
from tests.cli.test_dead_letters import run
from tests.dead_letters.test_redrive import dead
from tests.factories import job

pytestmark = pytest.mark.django_db

KIND = "0123456789abcdef"


def test_a_note_is_written_printed_and_removed():
    assert run("note", KIND) == (5, f"there is no note on {KIND}\n")
    status, said = run("note", KIND, "--text", "ask ann\nnot bob", "--by", "ann")
    assert (status, said) == (0, f"{KIND} has this note now; all jobs that fail like that show it\n")
    status, said = run("note", KIND)
    head, *text = said.splitlines()
    assert (status, text) == (0, ["ask ann", "not bob"])
    assert (head.split()[0], head.split()[-1]) == (KIND, "ann")
    assert run("note", KIND, "--text", "") == (0, f"the note on {KIND} is removed\n")
    assert run("note", KIND, "--text", "") == (5, f"there is no note on {KIND}; nothing was changed\n")
    assert notes() == []


def test_all_notes_are_listed():
    assert run("note") == (0, "no note was written\n")
    note(KIND, "a long story\n" * 100, by="ann")
    status, said = run("note")
    (line,) = said.splitlines()
    assert status == 0
    assert line.startswith(KIND)
    assert line.endswith("...")
    (found,) = json.loads(run("note", "--json")[1])["notes"]
    assert (found["fingerprint"], found["by"], found["text"].count("story")) == (KIND, "ann", 100)


def test_groups_and_jobs_show_the_note():
    (job_id,) = dead()
    note(job(job_id).fingerprint, "the card\nwas declined")
    assert "   note: the card was declined\n" in run("list", "--groups")[1]
    assert "note on such failures: the card was declined\n" in run("show", job_id)[1]
    assert json.loads(run("show", job_id, "--json")[1])["note"] == "the card\nwas declined"
    (group,) = json.loads(run("list", "--groups", "--json")[1])["groups"]
    assert group["note"] == "the card\nwas declined"


def test_json_tells_what_was_changed():
    found = json.loads(run("note", KIND, "--text", "x", "--json")[1])
    assert (found["changed"], found["note"]["text"]) == (True, "x")
    assert json.loads(run("note", KIND, "--json")[1])["note"]["text"] == "x"
    found = json.loads(run("note", KIND, "--text", "", "--json")[1])
    assert (found["changed"], found["note"]) == (True, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", "x"], "fingerprint"),
        ([KIND, "--by", "ann"], "--text"),
        (["xyz", "--text", "x"], "16 hexadecimal digits"),
        (["xyz"], "16 hexadecimal digits"),
        ([KIND, "--text", "x" * 2001], "2001 characters"),
    ],
)
def test_wrong_usage_is_refused(words, said):
    with pytest.raises(CommandError, match=said):
        run("note", *words)
    assert notes() == []


def test_a_note_cannot_forge_a_line():
    note(KIND, "a\x1b[31m\u202e")
    assert "\x1b" not in run("note")[1]
    assert "\x1b" not in run("note", KIND)[1]
