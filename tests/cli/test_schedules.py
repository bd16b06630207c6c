"""manage.py jobs schedules: list, run, enable, disable, preview, import."""

from functools import partial

import pytest
from django.core.management import CommandError

from jobqueue.cli import output
from jobqueue.db.clock import read_now
from jobqueue.models import Job, Schedule
from jobqueue.schedules import disable, known
from jobqueue.schedules.declaring import check_terms
from jobqueue.schedules.editing import save
from tests.app import tasks
from tests.cli.helpers import Terminal, printed, read_json, refused
from tests.schedules import foreign
from tests.schedules.helpers import USING, begin

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


@pytest.fixture(scope="class")
def foreign_tables(django_db_setup, django_db_blocker):
    """The tables of the other packages, which other tests here must not have."""
    with django_db_blocker.unblock(), foreign.tables():
        yield


run, read = partial(printed, "schedules"), partial(read_json, "schedules")


def test_without_schedules_there_is_nothing_to_tell():
    assert run() == "no schedules yet: those in the code begin when a worker runs\n"


def test_without_a_verb_it_lists_schedules_with_their_next_tick_and_state():
    begin("nightly", cron="0 3 * * *", timezone="UTC")
    begin("often", every="15m")
    disable("often", reason="the provider is down")
    head, nightly, often = run().splitlines()
    assert head.split() == ["name", "when", "task", "next", "tick", "last", "tick", "last", "job", "state"]
    assert nightly.startswith("nightly  At 03:00")
    assert nightly.endswith("enabled")
    assert "every 15m" in often
    assert often.endswith("-          -         disabled: the provider is down")
    assert run("list") == run()
    assert [one["name"] for one in read()["schedules"]] == ["nightly", "often"]


def test_it_shows_what_was_edited_differs_or_is_retired_and_single_ticks():
    begin("tick", every=60)
    save("tick", tasks.add, [1, 2], {}, check_terms("tick", every=300), by="ann", using=USING)
    assert run().rstrip().endswith("enabled, edited by ann, differs from the code")
    Schedule.objects.update(retired_at=read_now(USING), edited=False)
    assert "enabled, retired" in run()
    [one] = known(using=USING)
    Schedule.objects.all().delete()
    at = one.next_at or read_now(USING)
    save("tick", tasks.add, [1, 2], {}, check_terms("tick", every=60, start_at=at, end_at=at), by="", using=USING)
    assert f"once at {at:%Y-%m-%d}" in run()


def test_run_adds_a_job_at_once():
    begin()
    assert run("run", "tick").startswith("job #")
    job = Job.objects.get()
    assert job.payload == {"args": [1, 2], "kwargs": {}}
    assert read("run", "tick")["job_id"] > job.pk


def test_a_schedule_is_disabled_with_a_reason_and_enabled():
    begin()
    assert run("disable", "tick", "--reason", "moves") == "schedule tick fires no tick until it is enabled\n"
    assert Schedule.objects.get().reason == "moves"
    assert read("disable", "tick", "--reason", "again", status=5) == {"changed": False}
    assert run("enable", "tick") == "schedule tick fires again from its next tick on\n"
    assert run("enable", "tick", status=5) == "schedule tick was enabled already; nothing was changed\n"


def test_preview_shows_the_next_ticks_in_the_zone_of_the_schedule():
    begin(cron="0 3 * * *", timezone="Asia/Seoul")
    words, *ticks = run("preview", "tick").splitlines()
    assert words.endswith("(Asia/Seoul)")
    assert len(ticks) == 5
    assert {tick.partition(" 03:00:00 ")[2] for tick in ticks} == {"+0900"}
    assert len(read("preview", "tick", "--n", "2")["ticks"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stop"], "takes no words, or: list"),
        (["run"], "takes no words, or: list"),
        (["list", "tick"], "takes no words, or: list"),
        (["disable", "tick"], "needs --reason"),
        (["enable", "tick", "--reason", "x"], "--reason goes with disable"),
        (["run", "tick", "--dry-run"], "--dry-run goes with import"),
        (["run", "tok"], "no schedule is called 'tok'"),
        (["preview", "tok"], "no schedule is called 'tok'"),
        (["preview", "tick", "--n", "0"], "whole number from 1 to 1000"),
        (["import", "cron"], "reads beat or django-q2"),
        (["import", "beat", "--map", "a"], "is not OLD=NEW"),
        (["import", "beat", "--from", "nowhere"], "--from 'nowhere' is not in DATABASES"),
        (["list", "--from", "default"], "--from goes with import"),
    ],
)
def test_wrong_words_are_refused_with_status_2(capsys, words, said):
    begin()
    assert said in refused(capsys, "jobs", "schedules", *words)


def test_import_without_the_tables_says_so(capsys):
    said = refused(capsys, "jobs", "schedules", "import", "django-q2")
    assert "there is no table django_q_schedule in the database 'default'" in said


@pytest.mark.usefixtures("foreign_tables")
class TestImport:
    @pytest.mark.parametrize(
        ("options", "said"), [(["--json"], '{"version": 1, "schedules": null}\n'), (["-v", "0"], "")]
    )
    def test_an_answer_of_no_is_as_quiet_or_as_readable_as_was_asked_for(self, monkeypatch, options, said):
        foreign.periodic(1, "hourly", interval=(1, "hours"))
        monkeypatch.setattr(output.sys, "stdin", Terminal("n\n"))
        assert run("import", "beat", *options, status=5) == said
        assert known(using=USING) == []

    def test_a_dry_run_shows_what_would_be_made_and_changes_nothing(self):
        foreign.periodic(1, "hourly", interval=(1, "hours"), queue="fast")
        foreign.periodic(2, "sun", solar_id=1)
        lines = run("import", "beat", "--dry-run", "--from", "default").splitlines()
        assert lines[0].startswith("new  hourly  tests.app.tasks.add  every 1h 0m  next ")
        assert lines[0].endswith("UTC  without queue")
        assert lines[1] == "skipped  sun  it follows the sun, which no schedule of jobqueue does"
        assert lines[2] == "1 schedule would be made, 0 left alone, 1 skipped"
        assert not Schedule.objects.exists()

    def test_it_makes_schedules_and_leaves_them_alone_the_second_time(self):
        foreign.queued(1, "hourly", "H", func="shop.sum")
        words = ("import", "django-q2", "--map", "shop.sum=tests.app.tasks.add", "--yes")
        assert run(*words).endswith("1 schedule made, 0 left alone, 0 skipped\n")
        assert [one.source for one in known()] == ["admin"]
        found = read(*words)
        assert (found["new"], found["exists"], found["schedules"][0]["outcome"]) == (0, 1, "exists")

    def test_without_a_terminal_it_needs_yes(self):
        foreign.queued(1, "hourly", "H")
        with pytest.raises(CommandError, match="1 schedule would be made"):
            run("import", "django-q2", "--json")
        assert not Schedule.objects.exists()
