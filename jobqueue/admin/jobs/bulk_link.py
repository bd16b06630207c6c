"""The link from the list of jobs to the page that applies a verb to all jobs that match its filters."""

from __future__ import annotations

from django.http import HttpRequest

from jobqueue.admin.jobs.filters import chosen
from jobqueue.admin.page.addresses import address_of

_PERMISSIONS = ("retry_job", "cancel_job", "discard_job", "release_job", "prune_jobs")


def bulk_address(request: HttpRequest) -> str:
    """Its address with the filters of this list; "" for users who may do nothing."""
    if not any(request.user.has_perm(f"jobqueue.{name}") for name in _PERMISSIONS):
        return ""
    return address_of("auditevent_new", **chosen(request))
