"""Workflows of random shape, the same for the same seed, and what the database says of their nodes afterwards."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from jobqueue import workflow
from jobqueue.models import GroupMember, GroupParent, Job
from tests.proofs import audit
from tests.proofs.schedules import tasks

DEPTH = 5
PARENTS_MAX = 4


@dataclass
class Graph:
    """A workflow that has begun: its id, and the name of the node that fails until it is healed."""

    number: int
    broken: str
    parents: dict[str, list[str]] = field(default_factory=dict)


def start(seed, width, if_failed, path, seconds):
    """DEPTH levels of `width` nodes, each with 1 to 4 random parents in the level above; one fails without the file."""
    chance = random.Random(seed)
    wf = workflow(
        f"graph {seed}",
        if_failed=if_failed,
        on_success=tasks.ended_well,
        on_failure=tasks.ended_badly,
        on_done=tasks.ended,
    )
    broken = f"{chance.randrange(1, DEPTH - 1)}-{chance.randrange(width)}"
    parents = {}
    above = []
    for level in range(DEPTH):
        names = [f"{level}-{place}" for place in range(width)]
        for name in names:
            parents[name] = chance.sample(above, chance.randint(1, min(PARENTS_MAX, width))) if above else []
            if name == broken:
                wf.add(tasks.broken_node, str(path), name=name, after=parents[name])
            else:
                wf.add(tasks.node, seconds, name=name, after=parents[name])
        above = names
    return Graph(wf.start(), broken, parents)


def in_the_wrong_order():
    """Pairs of which the child has begun before its parent was DONE for good, by the columns of the jobs."""
    pairs = list(GroupParent.objects.values_list("child_id", "parent_id"))
    found = {job.pk: job for job in Job.objects.only("pk", "last_started_at", "finished_at")}
    return [(child, parent) for child, parent in pairs if found[child].last_started_at < found[parent].finished_at]


def begun_too_early():
    """The same as triggers have recorded it, for each time that a child was claimed, and not only for the last one."""
    begun, done = defaultdict(list), {}
    for seq, job_id, new in audit.run(f"SELECT seq, job_id, new_status FROM {audit.TABLE} ORDER BY seq"):
        if new == Job.Status.PROCESSING:
            begun[job_id].append(seq)
        elif new == Job.Status.DONE:
            done[job_id] = seq
    pairs = GroupParent.objects.values_list("child_id", "parent_id")
    return [(child, parent) for child, parent in pairs if begun[child][0] < done[parent]]


def times_done():
    """How many nodes became DONE how often, as triggers have recorded it."""
    rows = audit.run(f"SELECT job_id FROM {audit.TABLE} WHERE new_status = {int(Job.Status.DONE)}")
    ends = Counter(job_id for (job_id,) in rows)
    return Counter(ends[job_id] for job_id in GroupMember.objects.values_list("pk", flat=True))


def callbacks():
    """How often each callback was added."""
    rows = Job.objects.exclude(task__in=(tasks.node.module_path, tasks.broken_node.module_path))
    return Counter(name.rpartition(".")[2] for name in rows.values_list("task", flat=True))
