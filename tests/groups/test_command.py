"""jobs groups."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobqueue import group, groups, transitions, workflow
from jobqueue.cli.arguments import FOUND
from jobqueue.models import GroupMember, Job
from tests.app import tasks
from tests.groups.helpers import claimed

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


def failed_workflow():
    """top, which has failed, -> bottom, which was canceled."""
    wf = workflow("publish")
    top = wf.add(tasks.add.using(max_attempts=1), 1, 2, name="top")
    wf.add(tasks.add, 1, 2, after=[top], name="bottom")
    number = wf.start()
    transitions.fail(claimed()[0], error="wrong")
    return number


def ready():
    """The names of the nodes whose jobs wait."""
    waiting = Job.objects.filter(status=Job.Status.READY).values("pk")
    return set(GroupMember.objects.filter(pk__in=waiting).values_list("name", flat=True))


def test_groups_are_listed_the_newest_first():
    first, second = made(), made()
    assert jobs()[0].splitlines() == [
        f"#{number}  import  sealed  0 done, 0 failed, 0 canceled of 1" for number in (second, first)
    ]
    assert jobs("--limit", "1")[0].splitlines()[1:] == ["there may be more; pass a larger --limit"]
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


@pytest.mark.parametrize("words", [["show"], ["end", "1"], ["list", "1"], ["resume"], ["resume", "1", "2"]])
def test_other_words_are_refused(words):
    with pytest.raises(CommandError, match="jobs groups takes"):
        jobs(*words)


def test_a_workflow_is_resumed():
    number = failed_workflow()
    text, status = jobs("resume", str(number))
    assert text.splitlines() == ["top: run again now", "bottom: run again after its parents"]
    assert (status, ready()) == (0, {"top", "bottom"})


def test_a_dry_run_of_resume_tells_and_changes_nothing():
    number = failed_workflow()
    text, status = jobs("resume", str(number), "--dry-run")
    assert text.splitlines() == ["top: would run again now", "bottom: would run again after its parents"]
    assert (status, ready()) == (0, set())


def test_resume_tells_its_nodes_as_json():
    number = failed_workflow()
    told = {"version": 1, "workflow_id": number, "runs": ["top"], "waits": ["bottom"]}
    assert json.loads(jobs("resume", str(number), "--json", "--dry-run")[0]) == told | {"dry_run": True}
    assert json.loads(jobs("resume", str(number), "--json")[0]) == told | {"dry_run": False}


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_resume_exits_with_another_status_if_there_is_nothing_to_do(words):
    wf = workflow("publish")
    wf.add(tasks.add, 1, 2)
    number = str(wf.start())
    assert jobs("resume", number, *words) == ("no node has failed or was canceled; nothing was changed\n", FOUND)
    assert jobs("resume", number, *words, "--json")[1] == FOUND


def test_resume_of_what_is_no_workflow_is_refused():
    for number in (made(), 999):
        with pytest.raises(CommandError, match=f"there is no workflow {number}"):
            jobs("resume", str(number))


@pytest.mark.parametrize("verb", ["show", "seal", "cancel"])
def test_a_dry_run_of_another_verb_is_refused(verb):
    number = made()
    with pytest.raises(CommandError, match=f"--dry-run goes with resume, not with {verb}"):
        jobs(verb, str(number), "--dry-run")
    assert groups.get(number).state == "sealed"


def test_a_dry_run_of_the_list_is_refused():
    with pytest.raises(CommandError, match="--dry-run goes with resume"):
        jobs("--dry-run")
