"""Dead letters by failure, and redrives, in the admin."""

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue.dead_letters import redrive, redrives
from jobqueue.exceptions import DatabaseBusy
from tests.admin.helpers import HOSTILE, JOBS, Inline, act, client_of, job_page, person, root, text_of
from tests.dead_letters.test_redrive import dead
from tests.factories import job, set_columns

pytestmark = pytest.mark.django_db

REDRIVES = "/admin/jobqueue/redrive/"


def test_the_page_shows_groups_of_dead_letters_with_links_to_their_jobs():
    ids = dead(3, task="app.tasks.pay")
    other = dead(error=ConnectionError("x"), task="app.tasks.ship")
    kind = job(ids[0]).fingerprint
    client = root()
    page = text_of(client.get(REDRIVES))
    assert f'<a href="{JOBS}?fingerprint={kind}">{kind}</a>' in page
    assert "Dead letters by failure" in page
    shown = text_of(client.get(f"{JOBS}?fingerprint={kind}"))
    assert [job_page(job_id) in shown for job_id in [*ids, *other]] == [True, True, True, False]
    assert kind in text_of(client.get(job_page(ids[0])))
    assert not Inline(page).found


def test_the_groups_and_the_first_jobs_of_a_redrive_show_the_error():
    dead(2, error=KeyError("password=hunter2"), task="app.tasks.pay")
    client = root()
    for page in (text_of(client.get(REDRIVES)), text_of(client.get(f"{REDRIVES}new/?task=app.tasks.pay"))):
        assert "KeyError: " in page
        assert "hunter2" not in page


def test_only_the_largest_groups_are_read_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr("jobqueue.admin.dead_letters.redrive_admin.GROUPS_SHOWN", 2)
    dead(3, task="app.most")
    dead(2, task="app.more")
    client = root()
    assert "largest groups are shown" not in text_of(client.get(REDRIVES))
    dead(task="app.least")
    dead(error=ConnectionError("x"), task="app.none")
    with CaptureQueriesContext(connection) as captured:
        page = text_of(client.get(REDRIVES))
    assert "Only the 2 largest groups are shown." in page
    assert ["app.most" in page, "app.more" in page, "app.least" in page] == [True, True, False]
    (grouping,) = [one["sql"] for one in captured if "GROUP BY" in one["sql"]]
    assert "LIMIT 3" in grouping


def test_groups_are_for_those_who_may_see_jobs():
    dead()
    assert "Dead letters by failure" not in text_of(client_of(person("view_redrive")).get(REDRIVES))
    assert client_of(person("view_job", name="bob")).get(REDRIVES).status_code == 403


def test_redrives_are_listed_and_stopped():
    dead(2)
    run = redrive(queue="q", canary=1, rate="50/s", limit=1)
    client = client_of(person("view_redrive", "view_job", "redrive_jobs"))
    page = text_of(client.get(REDRIVES))
    assert "queue=q" in page
    assert "0 / 1" in page
    assert "1, 50/s" in page
    act(client_of(person("view_redrive", "retry_job", name="bob")), "stop", run.id, path=REDRIVES)
    assert redrives()[0].state == "canary"
    act(client, "stop", run.id, path=REDRIVES)
    assert redrives()[0].state == "stopped"
    assert LogEntry.objects.get().get_change_message() == "stop"
    one = text_of(client.get(reverse("admin:jobqueue_redrive_change", args=[run.id])))
    assert "stopped by hand" in one


def test_names_of_others_are_shown_as_text():
    (job_id,) = dead()
    client = root()
    for hostile in HOSTILE:
        set_columns(job_id, task=hostile)
        redrive(task=hostile)
        page = text_of(client.get(REDRIVES))
        assert "<script>alert" not in page
        assert "<img src=x" not in page


@pytest.mark.parametrize("value", ["x", "0123456789abcdeg'", "\x00", "\uff10" * 16])
def test_an_odd_fingerprint_in_the_address_shows_nothing(value):
    (job_id,) = dead()
    assert job_page(job_id) not in text_of(root().get(JOBS, {"fingerprint": value}))


def test_a_selected_id_that_is_no_number_is_refused():
    assert act(root(), "stop", "x", path=REDRIVES).status_code == 400


def test_a_database_that_refuses_a_stop_is_no_error_page(monkeypatch):
    dead()
    run = redrive(queue="q")

    def refuse(run_id, *, using):
        raise DatabaseBusy("busy")

    monkeypatch.setattr("jobqueue.dead_letters.stop", refuse)
    client = root()
    act(client, "stop", run.id, path=REDRIVES)
    assert "could not be written to" in text_of(client.get(REDRIVES))
    assert redrives()[0].state == "running"


def test_a_second_click_on_start_is_refused_with_the_redrive_that_is_under_way():
    dead()
    values = {"queue": "q", "canary": "10", "rate": "", "limit": "", "start": "1"}
    client = root()
    for _ in range(2):
        page = client.post(f"{REDRIVES}new/", values)
    (run,) = redrives()
    assert f"redrive {run.id} has the same filter and is under way" in text_of(page)


def test_a_redrive_is_stopped_on_its_page_by_those_who_may():
    dead(2)
    run = redrive(queue="q", canary=1)
    page = reverse("admin:jobqueue_redrive_change", args=[run.id])
    client = client_of(person("view_redrive", "redrive_jobs"))
    assert 'value="stop"' in text_of(client.get(page))
    assert 'value="stop"' not in text_of(client_of(person("view_redrive", name="eve")).get(page))
    response = act(client, "stop", run.id, path=REDRIVES, jobqueue_page="1")
    assert response.url == page
    assert redrives()[0].state == "stopped"
    assert 'value="stop"' not in text_of(client.get(page))
