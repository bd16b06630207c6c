"""Language, TimeZone and RequestId: what a job keeps of the request that added it."""

from datetime import timedelta
from datetime import timezone as fixed

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from django.utils import timezone, translation

from jobqueue import task
from jobqueue.middleware import request_id, request_id_middleware
from jobqueue.models import Job
from jobqueue.testing import drain
from tests.marks import committed

NAMES = [f"jobqueue.middleware.{name}" for name in ("Language", "TimeZone", "RequestId")]
pytestmark = [committed, pytest.mark.usefixtures("own_registry")]
seen: list = []


@pytest.fixture(autouse=True)
def all_three():
    seen.clear()
    with override_settings(JOBQUEUE={"MIDDLEWARE": NAMES}):
        yield


def around_me():
    return translation.get_language(), timezone.get_current_timezone_name(), request_id()


@task(queue_name="q")
def look():
    seen.append(around_me())


@task(queue_name="q")
async def alook():
    seen.append(around_me())


@task(queue_name="q")
def first():
    look.enqueue()


@pytest.mark.parametrize("kind", [look, alook])
def test_a_job_has_the_language_the_zone_and_the_id_of_its_request(kind):
    before = around_me()

    def view(request):
        with translation.override("ko"), timezone.override("Asia/Seoul"):
            kind.enqueue()
        return HttpResponse()

    request_id_middleware(view)(RequestFactory().get("/", headers={"X-Request-ID": "r-1"}))
    drain()
    assert seen == [("ko", "Asia/Seoul", "r-1")]
    assert around_me() == before


def test_a_job_that_a_job_adds_belongs_to_the_same_request():
    with translation.override("ko"):
        first.enqueue()
    drain()
    assert seen[0][0] == "ko"


def test_a_fixed_offset_and_a_deactivated_language_are_not_stored():
    with timezone.override(fixed(timedelta(hours=2))), translation.override(None):
        look.enqueue()
    assert Job.objects.values_list("options", flat=True).get() is None
    drain()
    assert seen == [around_me()]


def test_jobs_that_were_added_before_run_as_they_are():
    with override_settings(JOBQUEUE={}):
        look.enqueue()
    drain()
    assert seen == [around_me()]


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 201, "ä"])
def test_a_request_without_a_usable_id_gets_a_new_one(given):
    headers = {} if given is None else {"X-Request-ID": given}
    found = []

    def view(request):
        found.append(request_id())
        return HttpResponse()

    response = request_id_middleware(view)(RequestFactory().get("/", headers=headers))
    assert response["X-Request-ID"] == found[0]
    assert len(found[0]) == 36
    assert request_id() is None


def test_the_id_of_a_request_on_an_event_loop():
    async def view(request):
        await look.aenqueue()
        return HttpResponse()

    response = async_to_sync(request_id_middleware(view))(
        AsyncRequestFactory().get("/", headers={"X-Request-ID": "r-2"})
    )
    assert response["X-Request-ID"] == "r-2"
    drain()
    assert seen[0][2] == "r-2"
