"""jobs groups."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobqueue import group, groups
from jobqueue.cli.arguments import FOUND
from tests.app import tasks

pytestmark = pytest.mark.django_db


def jobs(*words):
    """What `jobs groups` prints, and its exit status."""
    out = StringIO()
    try:
        call_command("jobs", "groups", *words, stdout=out)
    except SystemExit as end:
        return out.getvalue(), end.code
    return out.getvalue(), 0


def made():
    with group("import") as g:
        g.add(tasks.add, 1, 2)
    return g.id


def test_groups_are_listed_the_newest_first():
    first, second = made(), made()
    assert jobs()[0].splitlines() == [
        f"#{number}  import  sealed  0 done, 0 failed, 0 canceled of 1" for number in (second, first)
    ]
    found = json.loads(jobs("list", "--json", "--limit", "1")[0])
    assert [one["id"] for one in found["groups"]] == [second]
    groups.cancel(second)
    assert [one["id"] for one in json.loads(jobs("--live", "--json")[0])["groups"]] == [first]


def test_a_group_is_shown_and_canceled():
    number = made()
    assert json.loads(jobs("show", str(number), "--json")[0])["group"]["outstanding"] == 1
    text, status = jobs("cancel", str(number))
    assert (text.strip(), status) == (f"#{number}  import  ended  0 done, 0 failed, 1 canceled of 1", 0)
    text, status = jobs("seal", str(number))
    assert "nothing was changed" in text
    assert status == FOUND


@pytest.mark.parametrize("words", [["show"], ["end", "1"], ["list", "1"]])
def test_other_words_are_refused(words):
    with pytest.raises(CommandError, match="jobs groups takes"):
        jobs(*words)
