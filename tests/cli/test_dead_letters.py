"""manage.py jobs list, show, retry by filter, redrives, cancel, discard, release."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobqueue.cli import dead_letters, jobs, output
from jobqueue.dead_letters import redrives
from jobqueue.exceptions import DatabaseBusy, OutcomeUnknown
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from tests.cli.helpers import Terminal
from tests.dead_letters.test_redrive import carry_out, dead
from tests.factories import job, make_in_state, make_job, set_columns, state
from tests.marks import finding

pytestmark = pytest.mark.django_db


def run(*words):
    """Its exit status, and what it printed."""
    out = StringIO()
    try:
        call_command("jobs", *map(str, words), stdout=out)
    except SystemExit as stopped:
        return stopped.code, out.getvalue()
    return 0, out.getvalue()


def test_jobs_that_match_are_looked_for_in_parts_of_the_table(monkeypatch):
    monkeypatch.setattr(jobs, "SEARCHED", 2)
    made = [make_job("a"), make_job("b"), make_job("a"), make_job("b"), make_job("b")]
    said = json.loads(run("list", "--queue", "a", "--json")[1])
    assert ([found["id"] for found in said["jobs"]], said["complete"]) == ([made[2], made[0]], True)


def test_where_no_job_matches_only_the_newest_ones_are_looked_at(monkeypatch):
    monkeypatch.setattr(jobs, "SEARCHED", 2)
    monkeypatch.setattr(jobs, "LOOK_SECONDS", -1.0)
    oldest, *_ = [make_job("a"), make_job("b"), make_job("b"), make_job("b")]
    said = json.loads(run("list", "--queue", "a", "--json")[1])
    assert (said["jobs"], said["complete"]) == ([], False)
    assert run("list", "--queue", "a")[1].splitlines() == [
        "no job matches",
        "only the newest jobs were searched; --state failed searches all dead letters",
    ]
    assert json.loads(run("list", "--json")[1])["complete"] is True
    assert [found["id"] for found in json.loads(run("list", "--json")[1])["jobs"]][-1] == oldest


def test_groups_have_the_newest_dead_letters_and_say_so(monkeypatch):
    monkeypatch.setattr(jobs, "GROUPED_MAX", 2)
    for _ in range(3):
        make_in_state("FAILED")
    assert run("list", "--groups")[1].splitlines()[-1] == "2 dead letters in 1 group, among the newest 2"
    assert json.loads(run("list", "--groups", "--json")[1])["complete"] is False
    assert json.loads(run("list", "--groups", "--queue", "nowhere", "--json")[1]) == {
        "version": 1,
        "groups": [],
        "complete": False,
    }


def test_it_lists_jobs_newest_first():
    one, two = make_job(), make_in_state("FAILED", queue="other")
    status, said = run("list")
    assert (status, [line.split()[0] for line in said.splitlines()]) == (0, [f"#{two}", f"#{one}"])
    assert [found["id"] for found in json.loads(run("list", "--state", "ready", "--json")[1])["jobs"]] == [one]
    assert [found["id"] for found in json.loads(run("list", "--state=failed", "--json")[1])["jobs"]] == [two]
    assert run("list", "--queue", "nowhere") == (0, "no job matches\n")


@finding("O-M12")
def test_the_states_are_those_of_the_lists_of_the_admin(monkeypatch):
    """Also where more jobs wait than one statement looks at."""
    ids = {
        "ready": make_job(),
        "scheduled": make_job(gate=PARENTS_GATE),
        "held": make_job(gate=HELD_GATE),
        "done": make_in_state("DONE", "other"),
        "running": make_in_state("PROCESSING", "other"),
    }
    for searched in (jobs.SEARCHED, 2):
        monkeypatch.setattr(jobs, "SEARCHED", searched)
        for name, job_id in ids.items():
            said = json.loads(run("list", "--state", name, "--json")[1])
            assert ([found["id"] for found in said["jobs"]], said["complete"]) == ([job_id], True), name
    assert [found["id"] for found in json.loads(run("list", "--state", "processing", "--json")[1])["jobs"]] == [
        ids["running"]
    ]


@finding("O-M12")
def test_jobs_that_wait_are_listed_behind_more_ended_jobs_than_are_looked_at(monkeypatch):
    waits = make_job()
    for _ in range(3):
        make_in_state("DONE", "other")
    monkeypatch.setattr(jobs, "SEARCHED", 2)
    monkeypatch.setattr(jobs, "LOOK_SECONDS", -1.0)
    said = json.loads(run("list", "--state", "ready", "--json")[1])
    assert ([found["id"] for found in said["jobs"]], said["complete"]) == ([waits], True)


def test_it_lists_dead_letters_in_groups():
    ids = dead(3, task="app.one")
    dead(error=ConnectionError("x"))
    kind = job(ids[0]).fingerprint
    status, said = run("list", "--groups")
    first, _, last = said.splitlines()
    assert status == 0
    assert first.startswith(f"3  data  app.one  builtins.ValueError  {kind}  last ")
    assert first.endswith(f"such as #{ids[-1]}")
    assert last == "4 dead letters in 2 groups"
    (group,) = json.loads(run("list", "--groups", "--fingerprint", kind, "--json")[1])["groups"]
    assert (group["count"], group["fingerprint"]) == (3, kind)
    assert json.loads(run("list", "--groups", "--json")[1])["complete"]
    assert not json.loads(run("list", "--groups", "--limit", "1", "--json")[1])["complete"]
    with pytest.raises(CommandError):
        run("list", "--groups", "--state", "ready")


def test_it_shows_a_job_with_its_attempts():
    (job_id,) = dead(error=ValueError("order 7 is closed"))
    status, said = run("show", job_id)
    assert status == 0
    assert "state: FAILED" in said
    assert "order 7 is closed" in said
    assert "attempt 1  data  builtins.ValueError" in said
    assert "payload" not in said
    found = json.loads(run("show", job_id, "--payload", "--json")[1])
    assert (found["job"]["state"], found["attempts"][0]["cause"]) == ("FAILED", "data")
    assert "payload" in found["job"]
    assert run("show", 10**9) == (1, f"job {10**9} does not exist\n")


def test_all_keys_of_a_job_are_text_in_json():
    job_id = make_job(**{f"{name}_key": b"\xff1" for name in ("dedupe", "released", "ordering", "concurrency")})
    found = json.loads(run("show", job_id, "--json")[1])["job"]
    assert {found[f"{name}_key"] for name in ("dedupe", "released", "ordering", "concurrency")} == {"\\xff1"}


def test_a_dry_run_counts_and_changes_nothing():
    dead(3)
    assert run("retry", "--queue", "q", "--dry-run") == (0, "3 dead letters would be retried; nothing was changed\n")
    assert run("retry", "--queue", "other", "--dry-run")[0] == 5
    assert redrives() == []


def test_it_records_a_redrive():
    ids = dead(3)
    words = ("--fingerprint", job(ids[0]).fingerprint, "--canary", "2", "--rate", "50/s", "--limit", "9")
    status, said = run("retry", *words, "--yes")
    assert status == 0
    assert "canary 2  50/s. Workers carry it out" in said
    (found,) = redrives()
    assert (found.matched, found.canary, found.per_second, found.limit) == (3, 2, 50.0, 9)
    assert {state(job_id) for job_id in ids} == {"FAILED"}


def test_ids_with_a_canary_are_a_redrive_of_these_ids():
    one, two, _ = dead(3)
    run("retry", one, two, "--canary", "1", "--yes")
    assert redrives()[0].filters == {"job_ids": [one, two]}
    json_said = json.loads(run("retry", one, "--limit", "1", "--dry-run", "--json")[1])
    assert (json_said["redrive"]["matched"], json_said["redrive"]["id"]) == (1, None)


def test_a_dry_run_of_ids_shows_what_retry_would_do():
    canceled, failed, done = make_in_state("CANCELED"), make_in_state("FAILED"), make_in_state("DONE")
    status, said = run("retry", canceled, failed, done, "--dry-run")
    assert status == 5
    assert said.splitlines() == [
        f"job {canceled} would be READY",
        f"job {failed} would be READY",
        f"job {done} would not be changed: its state, its dedupe key or its ordering key forbids it",
    ]
    assert [state(canceled), state(failed), state(done)] == ["CANCELED", "FAILED", "DONE"]
    assert json.loads(run("retry", failed, "--dry-run", "--json")[1])["jobs"] == [{"id": failed, "state": "READY"}]
    assert redrives() == []


def test_without_a_filter_it_is_refused():
    dead()
    for words in ((), ("--canary", "1"), ("--limit", "3", "--yes"), ("--everything", "--queue", "q", "--yes")):
        with pytest.raises(CommandError):
            run("retry", *words)
    assert redrives() == []
    assert run("retry", "--everything", "--yes")[0] == 0


def test_off_a_terminal_it_needs_yes():
    dead()
    with pytest.raises(CommandError) as caught:
        run("retry", "--everything")
    assert "pass --yes" in str(caught.value)
    assert redrives() == []


@pytest.mark.parametrize(("answer", "count"), [("y\n", 1), ("n\n", 0), ("\n", 0), ("", 0)])
def test_on_a_terminal_it_asks(monkeypatch, capsys, answer, count):
    """The last answer is Ctrl-D."""
    dead(2)
    monkeypatch.setattr(output.sys, "stdin", Terminal(answer))
    status, _ = run("retry", "--queue", "q")
    assert capsys.readouterr() == ("", "Retry 2 dead letters? [y/N] ")
    assert (status, len(redrives())) == (0 if count else 5, count)


@pytest.mark.parametrize(("options", "said"), [(["--json"], '{"version": 1, "redrive": null}\n'), (["-v", "0"], "")])
def test_an_answer_of_no_is_as_quiet_or_as_readable_as_was_asked_for(monkeypatch, options, said):
    dead()
    monkeypatch.setattr(output.sys, "stdin", Terminal("n\n"))
    assert run("retry", "--queue", "q", *options) == (5, said)


def test_the_limit_is_in_the_question_the_dry_run_and_the_progress(monkeypatch, capsys):
    dead(3)
    words = ("retry", "--queue", "q", "--limit", "2")
    assert run(*words, "--dry-run")[1] == "2 dead letters of the 3 that match would be retried; nothing was changed\n"
    monkeypatch.setattr(output.sys, "stdin", Terminal("y\n"))
    assert "0 of 2 jobs" in run(*words)[1]
    assert capsys.readouterr().err == "Retry 2 dead letters of the 3 that match? [y/N] "


@pytest.mark.parametrize("error", [DatabaseBusy("refused six times"), OutcomeUnknown("no answer")])
@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_a_write_that_the_database_refuses_has_its_own_status_and_what_was_done_is_told(
    monkeypatch, capsys, verb, error
):
    one, two, _ = ids = [make_in_state("READY" if verb == "cancel" else "FAILED") for _ in range(3)]

    def refused(job_id, *, using):
        if job_id == two:
            raise error
        return True

    if verb == "cancel":
        monkeypatch.setitem(jobs.CHANGES, verb, (refused, *jobs.CHANGES[verb][1:]))
    else:
        monkeypatch.setattr(dead_letters, "retry", refused)
    status, said = run(verb, *ids)
    assert (status, said.splitlines()) == (3, [line for line in said.splitlines() if line.startswith(f"job {one} ")])
    assert len(said.splitlines()) == 1
    status, said = run(verb, *ids, "--json")
    assert (status, [found["id"] for found in json.loads(said)["jobs"]]) == (3, [one])
    assert str(error) in capsys.readouterr().err


def test_a_second_redrive_of_the_same_filter_is_wrong_usage():
    dead()
    run("retry", "--queue", "q", "--yes")
    with pytest.raises(CommandError) as caught:
        run("retry", "--queue", "q", "--yes")
    assert f"redrive {redrives()[0].id} has the same filter and is under way" in str(caught.value)
    assert caught.value.returncode == 2


def test_a_text_that_no_database_stores_is_wrong_usage():
    for odd in ("app\udcff", "app\x00"):
        with pytest.raises(CommandError):
            run("list", "--task", odd)


def test_alone_takes_ids_only():
    dead()
    with pytest.raises(CommandError):
        run("retry", "--queue", "q", "--alone", "--yes")


def test_redrives_are_listed_and_stopped():
    assert run("redrives") == (0, "no redrive was recorded\n")
    dead(2)
    run("retry", "--queue", "q", "--yes")
    (one,) = redrives()
    assert run("redrives") == (0, f"redrive {one.id}  running  0 of 2 jobs  queue q\n")
    assert run("redrives", "--limit", "1")[1].endswith("there may be more; pass a larger --limit\n")
    assert run("redrives", "stop", one.id) == (0, f"redrive {one.id} is stopped\n")
    assert run("redrives", "stop", one.id)[0] == 5
    assert json.loads(run("redrives", "--json")[1])["redrives"][0]["reason"] == "stopped by hand"
    carry_out()
    assert Job.objects.dead().count() == 2
    with pytest.raises(CommandError):
        run("redrives", "halt")


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [("cancel", "READY", "CANCELED"), ("discard", "FAILED", "CANCELED"), ("release", "PROCESSING", "READY")],
)
def test_a_verb_is_applied_to_each_id(verb, before, after):
    two, one = make_in_state("DONE"), make_in_state(before)
    status, said = run(verb, one, two)
    assert (status, state(one), state(two)) == (5, after, "DONE")
    assert f"job {two} was not changed" in said
    assert json.loads(run(verb, two, "--json")[1]) == {"version": 1, "jobs": [{"id": two, "changed": False}]}
    with pytest.raises(CommandError):
        run(verb, "x")


def test_names_that_others_chose_stay_on_their_line():
    set_columns(make_job(), task="app\nfake #9")
    assert len(run("list")[1].splitlines()) == 1
