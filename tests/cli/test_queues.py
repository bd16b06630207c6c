"""manage.py jobs queues: list, pause, resume, drain, limit."""

import getpass
from datetime import timedelta
from functools import partial

import pytest
from django.core.management import CommandError

from jobqueue import enqueue, enqueue_many
from jobqueue.cli.output import aligned
from jobqueue.db.clock import read_now
from jobqueue.exceptions import QueueFull
from jobqueue.flow import limits, pause, paused, set_limit
from jobqueue.maintenance.worker_rows import register
from jobqueue.models import Worker
from jobqueue.transitions import claim
from tests.cli.helpers import printed, read_json, refused

pytestmark = pytest.mark.django_db
TASK = "tests.app.tasks.add"
WHY = ("--reason", "the provider is down")


run, read = partial(printed, "queues"), partial(read_json, "queues")


def test_without_queues_there_is_nothing_to_tell():
    assert run() == "no queues yet: there are no jobs, and nothing is set\n"


def test_without_a_verb_it_lists_queues_with_what_waits_runs_and_is_set(settings):
    settings.JOBQUEUE = {"QUEUES": {"web": {"CONCURRENCY": (2, 8), "RATE": "10/s"}}}
    enqueue_many("mail", range(3))
    claim("mail", 1, worker="w")
    pause("mail", reason="the provider is down", by="ann")
    set_limit("mail", task=TASK, concurrency=1)
    set_limit("slow", concurrency=0)
    lines = [
        "queue                 ready  running  state    concurrency      rate  why",
        "mail                      2        1  paused   -                -     the provider is down, by ann",
        f"  {TASK}                   running  1                -     concurrency set by hand",
        "slow                      0        0  paused   0                -     limit of 0, concurrency set by hand",
        "web                       0        0  running  2 to 8, now 2    10/s",
    ]
    assert [line.split() for line in run().splitlines()] == [line.split() for line in lines]
    assert run("list") == run()
    assert [line.split()[0] for line in run("list", "mail").splitlines()] == ["queue", "mail", TASK]


def test_columns_line_up_by_the_width_of_korean_characters():
    lines = [*aligned([("queue", "n"), ("메일", "10"), ("a\nb", "5")], numbers=(1,))]
    assert lines == ["queue   n", "메일   10", "a\\nb    5"]


def test_json_has_stable_names(settings):
    settings.JOBQUEUE = {"QUEUES": {"web": {"CONCURRENCY": (2, 8), "MAX_READY": 5}}}
    pause("web", reason="r", by="ann")
    (web,) = read()["queues"]
    assert web.pop("since")
    assert web == {
        "queue": "web", "task": None, "ready": 0, "scheduled": 0, "held": 0, "running": 0, "failed": 0,
        "oldest_age_seconds": 0.0, "mode": "paused", "reason": "r", "by": "ann", "until": None,
        "concurrency": [2, 8], "level": 2, "rate": None, "set_here": [], "max_ready": 5, "unaware_workers": 0,
        "starts_nothing": True,
    }  # fmt: skip


def test_pause_starts_nothing_more_and_says_how_many_jobs_run():
    enqueue_many("mail", range(3))
    assert run("pause", "mail", *WHY) == "Queue mail is paused; none of its jobs is running.\n"
    assert claim("mail", 1, worker="w") == []
    run("resume", "mail")
    assert len(claim("mail", 2, worker="w")) == 2
    assert run("pause", "mail", *WHY) == "Queue mail is paused; 2 jobs that run go on.\n"


def test_pause_records_who_why_and_until_when():
    said = run("pause", "mail", *WHY, "--until", "2h")
    (found,) = paused()
    assert (found.queue, found.reason, found.by) == ("mail", "the provider is down", getpass.getuser())
    left = found.until - read_now("default")
    assert timedelta(hours=1, minutes=59) < left <= timedelta(hours=2)
    assert "It resumes by itself at " in said
    run("pause", "mail", *WHY, "--by", "ann", "--until", "2190-01-31T18:00+09:00")
    (found,) = paused()
    assert (found.by, found.until.isoformat()) == ("ann", "2190-01-31T09:00:00+00:00")


def test_a_process_whose_user_has_no_name_pauses_all_the_same(monkeypatch):
    def nobody():
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    run("pause", "mail", *WHY)
    assert paused()[0].by == ""


def test_resume_ends_a_pause_and_a_second_one_changes_nothing():
    pause("mail", reason="r")
    assert run("resume", "mail") == "Queue mail is resumed.\n"
    assert paused() == []
    again = run("resume", "mail", status=5)
    assert again == "Queue mail was neither paused nor draining; nothing was changed.\n"
    assert read("resume", "mail", status=5)["changed"] is False


def test_drain_refuses_producers_and_works_off_what_is_there():
    enqueue("mail", 1)
    assert run("drain", "mail", *WHY).startswith("Queue mail is draining: new jobs are refused")
    with pytest.raises(QueueFull):
        enqueue("mail", 2)
    assert len(claim("mail", 2, worker="w")) == 1


def test_a_task_in_a_queue_is_paused_and_resumed():
    assert run("pause", "mail", "--task", TASK, *WHY) == f"Task {TASK} of queue mail is paused; jobs that run go on.\n"
    assert [(one.queue, one.task) for one in paused()] == [("mail", TASK)]
    assert run("resume", "mail", "--task", TASK) == f"Task {TASK} of queue mail is resumed.\n"
    assert "was not paused" in run("resume", "mail", "--task", TASK, status=5)


def test_limits_are_set_and_cleared():
    assert run("limit", "mail", "--concurrency", "5", "--rate", "10/s") == (
        "At most 5 jobs of queue mail run at once. Jobs of queue mail start at no more than 10/s.\n"
    )
    assert [(one.queue, one.concurrency, one.rate) for one in limits()] == [("mail", 5, "10/s")]
    assert "Any number of jobs of queue mail run at once." in run("limit", "mail", "--concurrency", "none")
    assert "start at any rate" in run("limit", "mail", "--rate", "none")
    assert [(one.queue, one.concurrency, one.rate) for one in limits()] == [("mail", None, None)]
    assert run("limit", "mail", "--clear") == "Queue mail has the limits of the settings again.\n"
    assert limits() == []
    assert run("limit", "mail", "--clear", status=5) == "No limit was set for queue mail; nothing was changed.\n"


def test_limits_of_a_task_are_those_of_its_code_when_cleared():
    said = run("limit", "mail", "--task", TASK, "--concurrency", "2", "--rate", "5/m")
    assert f"At most 2 jobs of task {TASK} in queue mail run at once." in said
    assert "the limits of its code again" in run("limit", "mail", "--task", TASK, "--clear")


@pytest.mark.parametrize("option", [("--concurrency", "0"), ("--rate", "0")])
def test_a_limit_of_0_says_that_the_queue_is_paused(option):
    enqueue("mail", 1)
    said = run("limit", "mail", *option)
    assert said.startswith("Queue mail is paused; none of its jobs is running. Set another limit, or clear it,")
    assert read("list", "mail")["queues"][0]["starts_nothing"] is True
    assert "paused" in run("list", "mail")
    pause("mail", reason="r")
    assert run("resume", "mail") == "Queue mail is resumed. It is still paused by a limit of 0.\n"


def test_a_limit_under_a_pause_says_that_it_is_still_paused():
    pause("mail", reason="r")
    assert run("limit", "mail", "--rate", "1/s").endswith("no more than 1/s. It is still paused.\n")


def test_a_limit_says_that_it_is_partial_while_an_older_worker_runs():
    register("old", supervisor_pid=1, boot_id="b", queues="*", concurrency=1, using="default")
    Worker.objects.update(gates=None)
    assert "This is partial: 1 running worker does not know it." in run("limit", "mail", "--concurrency", "2")
    assert "partial: 1 worker without it" in run()
    assert read("list", "mail")["queues"][0]["unaware_workers"] == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["stop", "mail"], "takes no words, or"),
        (["pause", *WHY], "takes no words, or"),
        (["pause", "a", "b", *WHY], "takes no words, or"),
        (["pause", "mail"], "needs --reason"),
        (["drain", "mail"], "needs --reason"),
        (["pause", "mail", "--reason", " "], "reason has 0 characters"),
        (["drain", "mail", *WHY, "--task", TASK], "--task goes with pause, resume, limit, not with drain"),
        (["list", "--until", "2h"], "--until goes with pause, not with list"),
        (["resume", "mail", "--clear"], "--clear goes with limit"),
        (["pause", "mail", *WHY, "--until", "tomorrow"], "'tomorrow' is not a duration"),
        (["pause", "mail", *WHY, "--until", "0"], "must be above 0"),
        (["pause", "mail", *WHY, "--until", "2190-01-31T18:00"], "has no offset from UTC"),
        (["pause", "mail", *WHY, "--until", "2001-01-31T18:00Z"], "has passed"),
        (["pause", "mail", *WHY, "--task", "tests.app.tasks.ad"], "no task is called"),
        (["pause", "a,b", *WHY], "may not start with"),
        (["limit", "mail"], "takes --concurrency, --rate or both"),
        (["limit", "mail", "--clear", "--rate", "1/s"], "takes --concurrency, --rate or both"),
        (["limit", "mail", "--concurrency", "-1"], "neither a whole number from 0 nor 'none'"),
        (["limit", "mail", "--concurrency", "x"], "neither a whole number from 0 nor 'none'"),
        (["limit", "mail", "--concurrency", "9" * 10], "neither a whole number from 0 nor 'none'"),
        (["limit", "mail", "--rate", "10/x"], "is not a rate"),
    ],
)
def test_wrong_words_and_values_are_refused_and_nothing_is_written(words, why):
    with pytest.raises(CommandError) as error:
        run(*words)
    assert why in str(error.value)
    assert (paused(), limits()) == ([], [])


def test_a_refusal_is_a_usage_error(capsys):
    assert "Nothing was changed." in refused(capsys, "jobs", "queues", "pause", "mail")


def test_a_queue_that_is_not_in_the_settings_is_refused_unless_something_is_set_for_it(settings):
    pause("gone", reason="r")
    settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": ["mail"]}}
    with pytest.raises(CommandError, match=r"queue 'mial' is not in TASKS\['QUEUES'\] \(mail\).*mean 'mail'"):
        run("pause", "mial", *WHY)
    assert run("resume", "gone") == "Queue gone is resumed.\n"


def test_verbosity_0_prints_nothing():
    assert run("pause", "mail", *WHY, "-v", "0") == ""
    assert run("-v", "0") == ""
