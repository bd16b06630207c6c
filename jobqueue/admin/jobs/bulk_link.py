"""The link from the list of jobs to the page that applies a verb to all jobs that match its filters."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse

from jobqueue.admin.jobs.filters import chosen
from jobqueue.bulk_verbs.filtering import FILTERS

_PERMISSIONS = ("retry_job", "cancel_job", "discard_job", "release_job", "prune_jobs")


def bulk_address(request: HttpRequest) -> str:
    """Its address with the filters of this list; "" where none is for many jobs, or the user may do nothing."""
    if not any(request.user.has_perm(f"jobqueue.{name}") for name in _PERMISSIONS):
        return ""
    filters = chosen(request)
    if not filters.keys() <= {*FILTERS}:
        return ""
    address = reverse("admin:jobqueue_auditevent_new")
    return f"{address}?{urlencode(filters)}" if filters else address
