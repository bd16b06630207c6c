"""Who may read the metrics, how often the database is asked, and what is answered when it is not there."""

import builtins
import threading

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db import OperationalError, connection
from django.test import RequestFactory

from jobqueue import metrics
from jobqueue.conf import load, read
from jobqueue.exceptions import StatementTimeout
from tests.factories import make_job, make_jobs
from tests.metrics.helpers import of, parsed
from tests.patience import patient

pytestmark = pytest.mark.django_db
TOKEN = "a-token-of-the-tests"


@pytest.fixture(autouse=True)
def fresh(settings):
    """No answer of an earlier test."""
    settings.JOBQUEUE = {"METRICS_TOKEN": TOKEN}
    metrics.cache.clear()
    yield
    metrics.cache.clear()


def scrape(authorization=f"Bearer {TOKEN}", *, method="get", user=None):
    """The status and the text of an answer."""
    headers = {} if authorization is None else {"Authorization": authorization}
    request = getattr(RequestFactory(), method)("/metrics", headers=headers)
    request.user = user or AnonymousUser()
    response = metrics.view(request)
    return response.status_code, response.content.decode()


def test_the_token_opens_it():
    make_jobs(2)
    status, text = scrape()
    assert status == 200
    assert of(parsed(text), "jobqueue_jobs", queue="q", state="ready") == 2
    assert scrape(f"bearer  {TOKEN} ")[0] == 200


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \xe9\xff"]
)
def test_anything_else_is_refused(authorization):
    status, text = scrape(authorization)
    assert status == 403
    assert "METRICS_TOKEN" in text
    assert TOKEN not in text


def test_without_a_token_in_the_settings_no_token_opens_it(settings):
    for given in ({}, {"METRICS_TOKEN": None}):
        settings.JOBQUEUE = given
        for authorization in ("Bearer", "Bearer None", f"Bearer {TOKEN}"):
            assert scrape(authorization)[0] == 403


@pytest.mark.parametrize(
    "wrong", ["", "short", "with a space in it", "é" * 20, b"bytes-of-the-tests", 12345678901234567]
)
def test_a_token_that_is_short_or_no_header_is_refused_by_the_check_and_not_printed(wrong):
    _, problems = read({"METRICS_TOKEN": wrong})
    assert problems == ["METRICS_TOKEN must be 16 to 256 visible ASCII characters without spaces, or None"]
    assert load().metrics_token == TOKEN


def test_staff_with_the_permission_may_read_it_and_others_not():
    permission = Permission.objects.get(codename="view_jobstat", content_type__app_label="jobqueue")
    for number, (staff, may, active) in enumerate([(1, 1, 1), (1, 0, 1), (0, 1, 1), (1, 1, 0)]):
        user = User.objects.create(username=f"u{number}", is_staff=staff, is_active=active)
        user.user_permissions.add(*[permission] * may)
        assert scrape(None, user=user)[0] == (200 if staff and may and active else 403)


def test_it_reads_only():
    assert scrape(method="post")[0] == 405
    assert scrape(method="head")[0] == 200


def test_a_request_in_a_project_without_users_can_use_the_token():
    request = RequestFactory().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert metrics.view(request).status_code == 200
    assert metrics.view(RequestFactory().get("/metrics")).status_code == 403


def test_the_url_of_a_project_answers_prometheus(client):
    response = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert response.status_code == 200
    assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response["Cache-Control"] == "private, no-store"


def test_ten_scrapes_cost_one_set_of_queries(django_assert_num_queries, monkeypatch):
    make_job()
    first = scrape()
    with django_assert_num_queries(0):
        assert {scrape() for _ in range(9)} == {first}
    make_job()
    monkeypatch.setattr(metrics, "CACHE_SECONDS", -1.0)
    assert scrape() != first


def test_scrapes_at_the_same_time_share_one_answer():
    made, entered, release = [], threading.Event(), threading.Event()

    def make():
        made.append(1)
        entered.set()
        release.wait(4 * patient())
        return metrics.Answer(200, "x")

    cache = metrics.Cache()
    threads = [threading.Thread(target=cache.get, args=[make]) for _ in range(10)]
    threads[0].start()
    assert entered.wait(patient())
    for thread in threads[1:]:
        thread.start()
    release.set()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_a_read_that_takes_too_long_is_said_to(monkeypatch):
    monkeypatch.setattr(metrics, "READ_SECONDS", -1.0)
    with pytest.raises(StatementTimeout):
        metrics.read_figures(using="default")
    status, text = scrape()
    assert status == 503
    assert "was stopped" in text
    assert connection.is_usable()


@pytest.mark.parametrize("part", ["snapshot", "totals"])
def test_a_database_that_does_not_answer_is_said_to_without_its_words(monkeypatch, caplog, part):
    def broken(*args, **options):
        raise OperationalError("no route to db.internal as root")

    monkeypatch.setattr(metrics, part, broken)
    status, text = scrape()
    assert (status, "did not answer" in text, "db.internal" in text) == (503, True, False)
    assert "db.internal" in caplog.text
    # Nine more scrapes get the same answer at once: scrapes must not add load to an outage.
    monkeypatch.undo()
    assert scrape()[0] == 503


def test_a_session_that_cannot_be_read_is_no_error_of_ours():
    class Away:
        @property
        def is_active(self):
            raise OperationalError("gone")

    assert scrape(None, user=Away())[0] == 503


def test_without_the_package_the_answer_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **options):
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert scrape() == (501, metrics._NOT_INSTALLED)
