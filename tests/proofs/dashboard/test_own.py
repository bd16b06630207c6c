"""Our pages as those of other packages are asked for: their times stand in one table."""

from __future__ import annotations

import re
import time

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from jobqueue.models import Job
from tests.proofs.dashboard.test_pages import MIX, QUEUES, TASKS
from tests.proofs.dashboard.test_rivals import SECONDS, TIMES, told
from tests.proofs.operations.crowded import crowded

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(7200)]


def test_our_own_pages(full, row):
    """Pages of admins among 2,000,000 jobs: the median of five requests."""
    rows = 2_000_000 if full else 2_000
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    jobs = reverse("admin:jobqueue_job_changelist")
    with crowded(rows, QUEUES, mix=MIX, tasks=TASKS):
        newest = Job.objects.order_by("-pk").values_list("pk", flat=True).first()
        pages = {
            "overview": reverse("admin:app_list", kwargs={"app_label": "jobqueue"}),
            "list of jobs": jobs,
            "failed jobs": f"{jobs}?state=failed",
            "jobs that wait": f"{jobs}?state=ready",
            "page of a job": reverse("admin:jobqueue_job_change", args=[newest]),
        }
        for page, address in pages.items():
            took = told(_seconds(client, address))
            # Ours are to answer, however many jobs there are.
            assert re.fullmatch(SECONDS, took), (page, took)
            row(package="jobqueue", page=page, jobs=f"{rows:,}", time=took)


def _seconds(client, address):
    found = []
    for _ in range(TIMES + 1):
        cache.clear()
        begun = time.perf_counter()
        assert client.get(address).status_code == 200
        found.append(time.perf_counter() - begun)
    return found[1:]
