"""The search for jobs: by id, keys and tag through an index; else by the name of a task."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from django.db.models import QuerySet
from django.utils.translation import gettext

from jobqueue.admin.page.addresses import id_of
from jobqueue.admin.page.formatting import short_task
from jobqueue.base.validation import KEY_BYTES, TAG_CHARS
from jobqueue.db import vendor
from jobqueue.models import Job, JobTag, LaneEntry
from jobqueue.ordering.lanes import lane_of
from jobqueue.tasks import registry
from jobqueue.transitions.claiming.candidates import queue_names

#: queues in which a key is searched; each costs some index seeks
QUEUES_SEARCHED = 1000
#: jobs of a key, and of a tag, that a search finds at most, the newest ones
FOUND_MAX = 1000
#: the name of a task that this process may not know
_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")


class Found(NamedTuple):
    """What a search has found: the ids of jobs; or, if `ids` is None, tasks, which stand for all of their jobs.

    `is_tag`: the searched text is a tag of each of these jobs. `is_whole`: no other job has the text as a key or tag.
    """

    ids: list[int] | None
    tasks: list[str]
    is_tag: bool = False
    is_whole: bool = True


def search(term: str, queue: str | None, *, using: str, warn: Callable[[str], None]) -> Found:
    """The job with this id; else those with this dedupe key, ordering key or tag; else those of this task.

    Keys are looked for in `queue`, or in the first QUEUES_SEARCHED queues; if there are more, warn() is called.
    """
    number = id_of(term)
    if number is not None and Job.objects.using(using).filter(pk=number).exists():
        return Found([number], [])
    key = term.encode("utf-8", "replace")
    parts: list[list[int]] = []
    if len(key) <= KEY_BYTES:
        queues = _queues(queue, using, warn)
        parts += _by_key(queues, key, using), _by_ordering_key(queues, key, using)
    of_tag: list[int] = []
    if len(term) <= TAG_CHARS:
        of_tag = list(tagged(term, using).order_by("-job_id").values_list("job_id", flat=True)[:FOUND_MAX])
    if ids := {*of_tag}.union(*parts):
        is_whole = all(len(part) < FOUND_MAX for part in (*parts, of_tag))
        return Found(sorted(ids, reverse=True), [], is_tag=ids == {*of_tag}, is_whole=is_whole)
    tasks = tasks_called(term, registry.names()[0]) or ([term] if _PATH.fullmatch(term) else [])
    return Found(None, tasks) if tasks else Found([], [])


def tasks_called(name: str, known: Iterable[str]) -> list[str]:
    """The tasks of `known` with this name or short name."""
    return [task for task in known if name in (task, short_task(task), task.rpartition(".")[2])]


def tagged(tag: str, using: str) -> QuerySet[JobTag]:
    """The entries of a tag, which ix_tag has in the order of the ids of jobs."""
    rows = JobTag.objects.using(using)
    # No tag contains NUL, and PostgreSQL's driver raises an error for it.
    return rows.none() if "\x00" in tag else rows.filter(tag=tag)


def _queues(queue: str | None, using: str, warn: Callable[[str], None]) -> list[str]:
    if queue is not None:
        return [] if "\x00" in queue else [queue]
    names = queue_names(using=using, limit=QUEUES_SEARCHED + 1)
    if len(names) > QUEUES_SEARCHED:
        text = gettext("Only the first %(n)d queues were searched; choose a queue to search another one.")
        warn(text % {"n": QUEUES_SEARCHED})
    return names[:QUEUES_SEARCHED]


def _by_key(queues: list[str], key: bytes, using: str) -> list[int]:
    """One job in each queue: the pair is unique."""
    rows = vendor(using).force_index(
        Job.objects.using(using).filter(queue__in=queues, dedupe_key=key), "uq_queue_dedupe"
    )
    return list(rows.values_list("pk", flat=True)[:FOUND_MAX])


def _by_ordering_key(queues: list[str], key: bytes, using: str) -> list[int]:
    """The jobs that have not ended. The index has the lanes of keys, and an ended job has left its lane."""
    lanes = [lane_of(queue, key) for queue in queues]
    rows = LaneEntry.objects.using(using).filter(lane__in=lanes, job_id__isnull=False).order_by("lane", "id")
    return list(rows.values_list("job_id", flat=True)[:FOUND_MAX])
