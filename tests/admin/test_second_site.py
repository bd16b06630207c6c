"""A project with several admin sites: the links of a page lead to pages of the same site."""

import re

import pytest
from django.contrib import admin
from django.urls import path

from jobqueue.admin import add_to
from jobqueue.flow import pause
from jobqueue.models import FailureNote, Job, Worker
from jobqueue.transitions import claim, fail
from tests.admin.helpers import act, root, text_of
from tests.factories import claim_one, job, make_job, make_jobs

pytestmark = pytest.mark.django_db

ops, few = admin.AdminSite("ops"), admin.AdminSite("few")
add_to(ops)
few.register(Job, type(admin.site._registry[Job]))

BOTH = (path("admin/", admin.site.urls), path("ops/", ops.urls))
ALONE = (path("ops/", ops.urls),)
FEW = (path("few/", few.urls),)
BESIDE = (path("admin/", admin.site.urls), path("few/", few.urls))


def _failed():
    make_job("mail", task="shop.mail.tasks.send", max_attempts=1)
    (lease,) = claim("mail", worker="w")
    fail(lease, error=ValueError("boom"))
    return lease.job_id


def _rows():
    """A job in each state that has links of its own, a worker, and a queue that is paused."""
    known = {"host": "web-1", "pid": 211, "supervisor_pid": 1, "boot_id": "b", "queues": "*", "version": "1"}
    worker = Worker.objects.create(name="web-1:211:b/1.1", concurrency=8, **known)
    failed = _failed()
    FailureNote.objects.create(fingerprint=job(failed).fingerprint, note="known", author="ann")
    make_job("web")
    running = claim_one("web", worker=worker.name).job_id
    make_jobs(3, "mail")
    pause("mail", reason="the mail server moves")
    return [f"job/{failed}/change/", f"job/{running}/change/", f"worker/{worker.pk}/change/"]


def _links(page):
    """Those of a page, without Django's link to the project itself."""
    return re.findall(r'(?:href|action|formaction)="(/(?!static/)[^"]+)"', page)


LISTS = [
    "",
    "settings/",
    "metrics/",
    "job/",
    "job/?state=failed",
    "worker/",
    "redrive/",
    "redrive/new/?queue=mail",
    "schedule/",
    "jobgroup/",
    "outboxevent/",
    "lockstat/",
    "auditevent/",
    "auditevent/new/?queue=mail",
    "flowrule/",
    "flowrule/queue/?queue=mail",
    "failurenote/",
]


@pytest.mark.parametrize("urls", [BOTH, ALONE], ids=["beside the default site", "alone"])
def test_pages_link_to_their_own_site(urls, settings):
    settings.ROOT_URLCONF = urls
    pages = _rows()
    client = root()
    for page in (*LISTS, *pages):
        links = _links(text_of(client.get(f"/ops/jobqueue/{page}")))
        assert links
        assert [link for link in links if not link.startswith("/ops/")] == [], page


def test_pages_of_the_default_site_link_to_that_also_after_a_page_of_another(settings):
    settings.ROOT_URLCONF = BOTH
    pages = _rows()
    client = root()
    for page in (*LISTS, *pages):
        client.get(f"/ops/jobqueue/{page}")
        links = _links(text_of(client.get(f"/admin/jobqueue/{page}")))
        assert [link for link in links if not link.startswith("/admin/")] == [], page


def test_a_verb_leads_back_to_the_page_of_the_same_site(settings):
    settings.ROOT_URLCONF = BOTH
    failed = _failed()
    answer = act(root(), "retry", failed, path="/ops/jobqueue/job/", jobqueue_page="1")
    assert answer.url == f"/ops/jobqueue/job/{failed}/change/"


@pytest.mark.parametrize("urls", [FEW, BESIDE], ids=["alone", "beside the default site"])
def test_what_a_site_does_not_have_is_text_without_a_link(urls, settings):
    settings.ROOT_URLCONF = urls
    failed, running, _worker = _rows()
    client = root()
    for page in ("", "job/", failed, running):
        text = text_of(client.get(f"/few/jobqueue/{page}"))
        links = _links(text)
        assert links
        assert [link for link in links if not link.startswith("/few/")] == [], page
        assert 'href=""' not in text
        assert 'action=""' not in text.replace('action="" method="get"', "")
    assert "web-1:211" in text


def test_a_site_without_redrives_does_not_offer_them(settings):
    settings.ROOT_URLCONF = FEW
    failed = _failed()
    client = root()
    assert "redrive" not in re.findall(r'<option value="([a-z_]*)"', text_of(client.get("/few/jobqueue/job/")))
    assert 'value="redrive"' not in text_of(client.get(f"/few/jobqueue/job/{failed}/change/"))
