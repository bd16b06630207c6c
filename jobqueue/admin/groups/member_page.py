"""The members of a group in one state, newest first, page by page."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.text import capfirst
from django.utils.translation import gettext

from jobqueue.admin.groups.members import WORDS, members_address, members_of, table
from jobqueue.admin.page.addresses import page_address
from jobqueue.admin.page.formatting import plain
from jobqueue.admin.page.verb_admin import VerbAdmin
from jobqueue.conf import load
from jobqueue.models import GroupMember, JobGroup

PAGE = 100
_STATES = {state.name.lower(): state for state in GroupMember.State}


def member_page(model_admin: VerbAdmin, request: HttpRequest, group_id: int, state: str) -> HttpResponse:
    """The page; ?before=ID leads to the members with smaller ids. Needs the permissions to see groups and jobs."""
    if not model_admin.has_view_permission(request) or not request.user.has_perm("jobqueue.view_job"):
        raise PermissionDenied
    using = load().database
    group = JobGroup.objects.using(using).filter(pk=group_id).only("name").first() if group_id < 2**63 else None
    if group is None or state not in _STATES:
        raise Http404
    wanted = _STATES[state]
    rows = members_of(group_id, wanted, using, newest=True)
    before = _before(request)
    if before is not None:
        rows = rows.filter(job_id__lt=before)
    members = list(rows.values_list("job_id", "name")[: PAGE + 1])
    shown, first = members[:PAGE], members_address(group_id, wanted)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": f"{plain(group.name, 80)}: {WORDS[wanted]}",
        "opts": model_admin.opts,
        "row_name": capfirst(gettext("group %(id)d") % {"id": group_id}),
        "back": page_address("jobgroup", group_id),
        "states": [(capfirst(str(word)), members_address(group_id, key), key == wanted) for key, word in WORDS.items()],
        "table": table(shown, wanted, using) if shown else "",
        "newest": first if before is not None else "",
        "older": f"{first}?before={shown[-1][0]}" if len(members) > PAGE else "",
    }
    return TemplateResponse(request, "admin/jobqueue/group_members.html", context)


def _before(request: HttpRequest) -> int | None:
    text = request.GET.get("before", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
