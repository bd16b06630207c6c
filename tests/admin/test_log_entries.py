"""Django's history with very many entries, of other apps and other rows: pages read a bounded number of them."""

import re
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.admin.audit import audit_admin
from jobqueue.admin.page import history
from jobqueue.models import Job
from tests.admin.helpers import client_of, job_page, person, text_of
from tests.factories import make_job
from tests.marks import finding
from tests.plans.test_redrive_plans import reads

pytestmark = pytest.mark.django_db
AUDIT = "/admin/jobqueue/auditevent/"
VERBS = f"{AUDIT}verbs/"


@pytest.fixture
def ann():
    return person("view_job", "view_auditevent")


def entries(user, count, text="other", job_id=999, model=Job):
    """Entries of one row, the oldest first; their ids."""
    kind = ContentType.objects.get_for_model(model)
    one = {"user": user, "content_type": kind, "object_id": str(job_id), "object_repr": "x", "action_flag": CHANGE}
    LogEntry.objects.bulk_create([LogEntry(change_message=text, **one) for _ in range(count)], batch_size=500)
    return list(LogEntry.objects.order_by("-pk").values_list("pk", flat=True)[:count])[::-1]


def analyze():
    # On MySQL it would commit the rows of the test.
    if connection.vendor != "mysql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE django_admin_log")


def on_log(work):
    with CaptureQueriesContext(connection) as captured:
        work()
    return [one["sql"] for one in captured.captured_queries if "django_admin_log" in one["sql"]]


def bounded(statement):
    """Whether a statement is bounded: by numbers for the primary key, or by reading from its end."""
    # psycopg writes a space in front of a number below 0.
    bound = r"[`\"]id[`\"] (>|<|>=|<=)  ?-?\d+"
    return re.search(bound, statement) or re.search(r"ORDER BY .* DESC LIMIT 1$", statement)


class TestOfOneRow:
    def test_its_changes_among_the_newest_are_shown_and_older_ones_are_not(self, ann, monkeypatch):
        monkeypatch.setattr(history, "LOOKED_AT", 20)
        job_id = make_job()
        entries(ann, 1, "long ago", job_id)
        entries(ann, 20)
        entries(ann, 1, "lately", job_id)
        client = client_of(ann)
        for page in (job_page(job_id), job_page(job_id).replace("/change/", "/history/")):
            text = text_of(client.get(page))
            assert "lately" in text
            assert "long ago" not in text

    def test_no_statement_is_without_a_bound(self, ann):
        job_id = make_job()
        entries(ann, 3, "lately", job_id)
        client = client_of(ann)
        for page in (job_page(job_id), job_page(job_id).replace("/change/", "/history/")):
            found = on_log(lambda page=page: client.get(page))
            assert found
            assert [sql for sql in found if not bounded(sql)] == []

    def test_the_page_of_its_history_says_how_far_it_looks(self, ann):
        job_id = make_job()
        page = job_page(job_id).replace("/change/", "/history/")
        assert "Only the newest 10,000 changes of all rows are looked at." in text_of(client_of(ann).get(page))

    def test_no_more_are_read_however_many_there_are(self, ann, monkeypatch):
        monkeypatch.setattr(history, "LOOKED_AT", 50)
        costs = []
        for many in (200, 3000):
            entries(ann, many)
            analyze()
            history.recent(Job, 1)
            costs.append(reads(lambda: history.recent(Job, 1), "django_admin_log"))
        assert costs[1] <= 2 * costs[0] + 60, costs


class TestOfAll:
    def test_ours_are_found_among_those_of_other_apps(self, ann, monkeypatch):
        monkeypatch.setattr(audit_admin, "WINDOW", 10)
        monkeypatch.setattr(audit_admin, "WINDOWS_MAX", 3)
        (old,) = entries(ann, 1, "an old verb")
        entries(ann, 25, model=ContentType)
        (young,) = entries(ann, 1, "a young verb")
        page = text_of(client_of(ann).get(VERBS))
        assert "a young verb" in page
        assert "an old verb" in page
        assert "?before=" not in page
        assert old < young

    def test_where_none_is_found_in_so_many_the_link_goes_on_from_there(self, ann, monkeypatch):
        monkeypatch.setattr(audit_admin, "WINDOW", 10)
        monkeypatch.setattr(audit_admin, "WINDOWS_MAX", 2)
        entries(ann, 1, "an old verb")
        entries(ann, 35, model=ContentType)
        client, page, steps = client_of(ann), text_of(client_of(ann).get(VERBS)), 0
        while "an old verb" not in page:
            steps += 1
            page = text_of(client.get(VERBS + re.search(r'href="(\?before=\d+)"', page)[1]))
        assert steps == 1
        assert "?before=" not in page

    def test_no_statement_is_without_a_bound(self, ann):
        entries(ann, 30)
        client = client_of(ann)
        for address in (AUDIT, VERBS, f"{VERBS}?before=99999999"):
            found = on_log(lambda address=address: client.get(address))
            assert found
            assert [sql for sql in found if not bounded(sql)] == []

    def test_no_more_are_read_however_many_others_there_are(self, ann, monkeypatch):
        monkeypatch.setattr(audit_admin, "WINDOW", 50)
        monkeypatch.setattr(audit_admin, "WINDOWS_MAX", 2)
        costs = []
        for many in (200, 3000):
            entries(ann, many, model=ContentType)
            analyze()
            audit_admin.records(10)
            costs.append(reads(lambda: audit_admin.records(10), "django_admin_log"))
        assert costs[1] <= 2 * costs[0] + 60, costs


@pytest.mark.parametrize(
    "key",
    [7, pytest.param("usr_01HZX", marks=finding("R-F11")), pytest.param(UUID(int=7), marks=finding("R-F11"))],
)
def test_an_entry_has_the_key_of_the_user_as_the_project_has_made_it(key):
    request = SimpleNamespace(user=SimpleNamespace(pk=key))
    assert history.log_entry(request, Job, 1, "job 1", CHANGE).user_id == key
