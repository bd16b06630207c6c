"""The group or workflow of a job: what it is a member or a callback of, and which nodes it runs after."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext

from jobqueue.admin.page.addresses import link, page_address
from jobqueue.admin.page.formatting import plain
from jobqueue.conf import load
from jobqueue.grouping.marks import callback_of, group_of
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup

NAME_CHARS = 80
PARENTS_SHOWN = 20


def membership(job: Job, request: HttpRequest) -> str:
    """A line about the group of a job, as HTML; "" for a job without one, which costs no statement.

    It leads to the group for those who may see groups. The parents of a node are named with links to their jobs.
    """
    of_member, of_callback = group_of(job.options), callback_of(job.options)
    number = of_member or of_callback
    if number is None:
        return ""
    using = load().database
    group = JobGroup.objects.using(using).filter(pk=number).only("name", "if_failed").first()
    if group is None:
        return gettext("group %(id)d, which was deleted") % {"id": number}
    words = gettext("group %(id)d: %(name)s") if group.if_failed is None else gettext("workflow %(id)d: %(name)s")
    text = words % {"id": number, "name": plain(group.name, NAME_CHARS)}
    if request.user.has_perm("jobqueue.view_jobgroup"):
        text = link(page_address("jobgroup", number), text)
    if of_member is None:
        return format_html("{} ({})", text, gettext("a callback of it"))
    return text if group.if_failed is None else format_html("{}{}", text, _as_node(job.pk, using))


def _as_node(job_id: int, using: str) -> str:
    """The name of a node, and the nodes that it runs after."""
    pairs = GroupParent.objects.using(using).filter(child_id=job_id).values_list("parent_id", flat=True)
    parents = sorted(pairs[: PARENTS_SHOWN + 1])
    names = dict(GroupMember.objects.using(using).filter(pk__in=[job_id, *parents]).values_list("pk", "name"))
    own = format_html('<div class="jobqueue-below">{}: {}</div>', gettext("node"), _name(names, job_id))
    if not parents:
        return own
    links = format_html_join(
        ", ",
        '<a href="{}">{}</a>',
        ((page_address("job", parent), _name(names, parent)) for parent in parents[:PARENTS_SHOWN]),
    )
    more = ", …" if len(parents) > PARENTS_SHOWN else ""
    after = '{}<div class="jobqueue-below">{}: {}{}</div>'
    return format_html(after, own, gettext("runs after"), links, more)


def _name(names: dict[int, str | None], job_id: int) -> str:
    return plain(names.get(job_id) or job_id, NAME_CHARS)
