"""The facts of a job on its page, as names and values; what a job does not have is left out."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.states import ShownJob
from jobqueue.admin.page.addresses import address_of, link, list_address, page_address
from jobqueue.admin.page.formatting import (
    CAUSES,
    NOTHING,
    StrOrPromise,
    hint,
    label,
    moment,
    plain,
    pretty,
    relative,
    same_failure,
    short_task,
    span,
)
from jobqueue.admin.page.tables import Fact, facts
from jobqueue.base.validation import readable_key
from jobqueue.conf import load
from jobqueue.explain.explanation import reason_in_words
from jobqueue.grouping.members import callback_of, group_of
from jobqueue.masking import mask_text
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup, JobTag
from jobqueue.ordering import SCHEDULED
from jobqueue.producer.insert import OPTIONAL_COLUMNS
from jobqueue.runs.job_filter import FILTERS

TAGS_SHOWN = 50
#: of a key in the address of a search
KEY_CHARS = 200
#: columns of an enqueue that the page shows in its own words, or leaves out
_IN_WORDS = {
    "priority", "run_at", "max_attempts", "task", "dedupe_key", "lease_seconds", "expires_at", "options",
    "ordering_key", "concurrency_key", "dependency", "unique_mode", "unique_seconds",
}  # fmt: skip


def title_of(job: ShownJob) -> str:
    """Such as "orders.send_receipt (job 812)"."""
    what = short_task(job.task) if job.task else gettext("handler of queue %(queue)s") % {"queue": job.queue}
    return gettext("%(what)s (job %(id)d)") % {"what": plain(what, 80), "id": job.pk}


def header(job: ShownJob, request: HttpRequest) -> list[str]:
    """Short facts for the line of the state: queue, attempts, time."""
    found = [gettext("queue %(queue)s") % {"queue": plain(job.queue)}]
    if request.user.has_perm("jobqueue.view_flowrule"):
        found = [link(address_of("flowrule_queue", queue=job.queue), found[0])]
    if job.attempts:
        of = {"n": job.attempts, "most": job.max_attempts}
        found.append(gettext("%(n)d of %(most)d attempts failed") % of)
    return [*found, _since(job)]


def _since(job: ShownJob) -> str:
    if job.status == Job.Status.PROCESSING and job.locked_at is not None:
        ran = span(max(0.0, (job.now - job.locked_at).total_seconds()))
        return hint(gettext("running for %(time)s") % {"time": ran}, moment(job.locked_at, job.now))
    ended = job.finished_at if job.status != Job.Status.READY else None
    if ended is not None:
        return hint(gettext("ended %(time)s") % {"time": relative(ended, job.now)}, moment(ended, job.now))
    at = {"time": relative(job.created_at, job.now)}
    return hint(gettext("enqueued %(time)s") % at, moment(job.created_at, job.now))


def details(job: ShownJob, request: HttpRequest) -> list[Fact]:
    """Task, queue, keys, tags, group and times. The group is shown as this user may see it."""
    reason = reason_in_words(job.wait_reason, job.gate) if job.wait_reason != SCHEDULED else ""
    return facts(
        (_("Task"), _linked(job.task, "task", plain(job.task)) if job.task else gettext("(handler)")),
        (_("Queue"), _linked(job.queue, "queue", plain(job.queue))),
        (label(Job, "priority"), job.priority or None),
        (_("failed attempts"), f"{job.attempts}/{job.max_attempts}"),
        (_("Tags"), _tags(job.pk)),
        (label(Job, "dedupe_key"), _key(job.dedupe_key)),
        (label(Job, "ordering_key"), _searched(job, job.ordering_key)),
        (label(Job, "concurrency_key"), _key(job.concurrency_key)),
        (_("group"), membership(job, request)),
        (label(Job, "dependency"), plain(job.dependency or "")),
        *_others(job),
        (label(Job, "wait_reason"), hint(plain(reason), plain(job.wait_reason or "")) if reason else ""),
        (label(Job, "created_at"), moment(job.created_at, job.now)),
        (label(Job, "run_at"), moment(job.run_at, job.now) if job.run_at != job.created_at else ""),
        (label(Job, "expires_at"), moment(job.expires_at, job.now)),
        (label(Job, "last_started_at"), moment(job.last_started_at, job.now)),
        (label(Job, "finished_at"), moment(job.finished_at, job.now)),
        (label(Job, "last_worker"), plain(job.last_worker or "") if job.locked_by is None else ""),
    )


def _others(job: ShownJob) -> Iterator[tuple[StrOrPromise, str]]:
    """What an enqueue has set in other columns, as links to the jobs that share it where the list has such a filter."""
    for name, default in OPTIONAL_COLUMNS.items():
        value = getattr(job, name)
        if name not in _IN_WORDS and value not in (None, default):
            text = plain(value)
            yield label(Job, name), _linked(str(value), name, text) if name in FILTERS else text


def failure(job: ShownJob, note: str, request: HttpRequest, *, is_told: bool) -> list[Fact]:
    """Why the last attempt did not succeed, unless an attempt on the page says it (`is_told`); and similar failures.

    `note`: on such failures, as this user may see it.
    """
    cause = str(CAUSES.get(job.cause, plain(job.cause))) if job.cause and not is_told else ""
    return facts(
        (label(Job, "cause"), cause),
        (_("Jobs that failed like that"), _alike(job.fingerprint, request) if job.fingerprint else ""),
        (_("note on such failures"), note),
    )


def _alike(fingerprint: str, request: HttpRequest) -> str:
    """The dead letters with this fingerprint, and the page that retries them all."""
    found = same_failure(fingerprint)
    if not all(map(request.user.has_perm, ("jobqueue.redrive_jobs", "jobqueue.view_redrive"))):
        return found
    retry = link(address_of("redrive_new", fingerprint=fingerprint), gettext("Retry all"))
    return format_html('{} <span aria-hidden="true">·</span> {}', found, retry)


def internals(job: ShownJob) -> list[Fact]:
    """Columns that help those who compare the job with the code."""
    return facts(
        (label(Job, "fence"), job.fence),
        (label(Job, "gate"), job.gate or None),
        (label(Job, "epoch"), job.epoch or None),
        (label(Job, "crashes"), job.crashes or None),
        (label(Job, "lease_seconds"), job.lease_seconds),
        (label(Job, "options"), pretty(job.options)),
        (label(Job, "updated_at"), moment(job.updated_at, job.now)),
    )


def content(job: ShownJob) -> list[tuple[str, str]]:
    """The payload and the result as blocks."""
    found = ((label(Job, name), pretty(getattr(job, name))) for name in ("payload", "result"))
    return [(capfirst(str(title)), block) for title, block in found if block != NOTHING]


def _linked(value: str, name: str, text: str) -> str:
    """A value as a link to the jobs that share it; the address of a secret would show it."""
    if mask_text(value) != value:
        return text
    return link(list_address("job", **{name: value}), text)


def _key(key: bytes | None) -> str:
    return plain(readable_key(key)) if key else ""


def _searched(job: ShownJob, key: bytes | None) -> str:
    """An ordering key, as a link to the jobs of the queue that have it."""
    text = _key(key)
    # Also a secret, which is masked: the address would show it.
    if not key or len(text) > KEY_CHARS or text.encode() != bytes(key):
        return text
    return link(list_address("job", queue=job.queue, q=text), text)


def _tags(job_id: int) -> str:
    rows = JobTag.objects.using(load().database).filter(job_id=job_id).order_by("pk")
    tags = list(rows.values_list("tag", flat=True)[: TAGS_SHOWN + 1])
    links = ((_linked(tag, "tag", plain(tag)),) for tag in tags[:TAGS_SHOWN])
    shown = format_html_join(" ", '<span class="jobqueue-tag">{}</span>', links)
    return format_html("{} …", shown) if len(tags) > TAGS_SHOWN else shown


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
    own = format_html('<div class="jobqueue-below">{}: {}</div>', gettext("node"), _node_name(names, job_id))
    if not parents:
        return own
    links = format_html_join(
        ", ",
        '<a href="{}">{}</a>',
        ((page_address("job", parent), _node_name(names, parent)) for parent in parents[:PARENTS_SHOWN]),
    )
    more = ", …" if len(parents) > PARENTS_SHOWN else ""
    after = '{}<div class="jobqueue-below">{}: {}{}</div>'
    return format_html(after, own, gettext("runs after"), links, more)


def _node_name(names: dict[int, str | None], job_id: int) -> str:
    return plain(names.get(job_id) or job_id, NAME_CHARS)
