"""What a node of a workflow waits for: its parents."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext

from jobqueue.explain.explanation import Explanation
from jobqueue.explain.reading import ReadJob
from jobqueue.models import GroupMember, GroupParent
from jobqueue.models.group import HELD_BY_PARENTS, PARENTS_GATE
from jobqueue.payload import JSON

State = GroupMember.State
_NAMED = 5


def parents_of(job: ReadJob, using: str) -> list[Explanation]:
    """parents, if the job waits for parents that have not ended, or is held because of those that did not end well."""
    if job.gate != PARENTS_GATE:
        return []
    held = job.wait_reason == HELD_BY_PARENTS
    states = (State.FAILED, State.CANCELED) if held else (State.OUTSTANDING,)
    pairs = GroupParent.objects.using(using).filter(child_id=job.pk, state__in=states).order_by("pk")
    found = list(pairs.values_list("parent_id", "group_id")[: _NAMED + 1])
    if not found:
        return []
    ids = [parent for parent, _ in found]
    names = dict(GroupMember.objects.using(using).filter(pk__in=ids).values_list("pk", "name"))
    facts = {"id": job.pk, "group": found[0][1], "parents": _listed(ids, names)}
    if held:
        text = gettext("Job %(id)d is held: these parents in workflow %(group)d did not end well: %(parents)s.")
        step = gettext("Resume the workflow (jobs groups resume %(group)d), or retry the parent.")
    else:
        text = gettext("Job %(id)d waits for its parents in workflow %(group)d: %(parents)s.")
        step = gettext("Wait for them, or ask why one does not run: jobs explain with its id.")
    evidence: dict[str, JSON] = {"job_id": job.pk, "workflow_id": found[0][1], "parents": ids[:_NAMED], "held": held}
    return [Explanation("parents", text % facts, evidence, step % facts)]


def _listed(ids: Sequence[int], names: dict[int, str | None]) -> str:
    words = [f"{names.get(number) or '?'} ({number})" for number in ids[:_NAMED]]
    return ", ".join(words + ["..."] * (len(ids) > _NAMED))
