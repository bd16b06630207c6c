"""workflow(): jobs that run after others.

Models are imported inside the functions: `from jobqueue import workflow` must work before the app registry is ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_group_name, check_list
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InsideCoroutine, InvalidType, InvalidValue
from jobqueue.groups.making import encoded_data

if TYPE_CHECKING:
    from jobqueue.db.fields import Encoded
    from jobqueue.grouping.members import Callback
    from jobqueue.producer.insert import NewJob

#: nodes of a workflow, and pairs of a parent and a child: it is written in one transaction
NODES_MAX, PAIRS_MAX = 10_000, 100_000
_IF_FAILED = ("cancel", "continue", "hold")


def workflow(
    name: str,
    *,
    if_failed: str = "cancel",
    data: JSON = None,
    on_success: Callback | None = None,
    on_failure: Callback | None = None,
    on_done: Callback | None = None,
    using: str | None = None,
) -> Workflow:
    """A workflow: add() adds nodes, each of which runs after its parents, and start() writes them all.

    `if_failed` says what becomes of a node whose parents have ended, one of them FAILED or CANCELED: "cancel" cancels
    it, "continue" lets it run, "hold" keeps it until groups.resume() or a retry of the parent. `data` and callbacks are
    as those of group(). Nothing is written before start(). Raises InvalidValue, InvalidType, PayloadError.
    """
    words = check_group_name(name, "workflow")
    if if_failed not in _IF_FAILED:
        raise InvalidValue(
            f'if_failed must be "cancel", "continue" or "hold", got {if_failed!r:.60}. Nothing was written.'
        )
    callbacks = {"on_success": on_success, "on_failure": on_failure, "on_done": on_done}
    return Workflow(words, if_failed, callbacks, encoded_data(data), using)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node of a workflow, to be given as a parent of others."""

    name: str
    workflow: Workflow

    def __repr__(self) -> str:
        return f"<node {self.name!r}>"


@dataclass(frozen=True, slots=True)
class _Added:
    job: NewJob
    task: AnyTask
    parents: Sequence[str]


class Workflow:
    """A workflow that is being made: add() its nodes, then start() it."""

    def __init__(
        self,
        name: str,
        if_failed: str,
        callbacks: Mapping[str, Callback | None],
        data: Encoded | None,
        using: str | None,
    ) -> None:
        self._name, self._if_failed, self._callbacks, self._data = name, if_failed, callbacks, data
        self._given = using
        self._nodes: dict[str, _Added] = {}
        self._started = False

    def add(
        self, task: AnyTask, *args: JSON, after: Iterable[Node | str] = (), name: str | None = None, **kwargs: JSON
    ) -> Node:
        """Add a node: a job of `task` with these arguments, which runs when all nodes of `after` have ended.

        `after` has nodes of this workflow, or their names, also of nodes that are added later. `name` is that of the
        task's function, with -2, -3 and so on when it is taken; its children find its result by it. Raises what
        enqueue() raises, WrongDatabase, and InvalidValue for a name that is taken, an ordering key of a node with
        parents, a node of another workflow, and after start(). Nothing is written.
        """
        from jobqueue.grouping.members import undated

        self._refuse_started("add()")
        parents = self._names_of(after)
        job = undated(task, list(args), dict(kwargs), alias_of(self._given))
        if parents and job.ordering_key is not None:
            raise InvalidValue(
                f"a node with parents cannot have an ordering key: it would hold up the key until they have ended. "
                f"Nothing was written; leave the key of {task.module_path} out, and write the order with after=."
            )
        found = self._free_name(task) if name is None else self._checked_name(name)
        if len(self._nodes) >= NODES_MAX:
            raise InvalidValue(f"a workflow has at most {NODES_MAX:,} nodes. Nothing was written; use group().")
        self._nodes[found] = _Added(job, task, parents)
        return Node(found, self)

    def start(self) -> int:
        """Write the workflow and all its jobs, in one transaction or the caller's; its id, which groups.get() takes.

        Raises InvalidValue for unknown parents, for a cycle, for jobs whose dedupe key is held, and if it was started
        before; QueueFull if a queue of a node without parents is full. Nothing was written then.
        """
        self._refuse_started("start()")
        order = self._order()
        using = alias_of(self._given)
        try:
            found = retry_transient("enqueue", partial(self._write, order, using), using=using, repeatable=False)
        except SynchronousOnlyOperation:
            raise InsideCoroutine("start()", "write: await sync_to_async(wf.start)()") from None
        self._started = True
        return found

    def _write(self, order: Sequence[str], using: str) -> int:
        from jobqueue.grouping.members import NewNode, add_nodes, dated
        from jobqueue.groups.operator import insert_group, seal
        from jobqueue.models import JobGroup

        places = {name: place for place, name in enumerate(order)}
        nodes = []
        for name in order:
            node = self._nodes[name]
            # `expires` counts from now.
            job = dated(node.job, node.task, using)
            nodes.append(NewNode(name, job, [places[parent] for parent in node.parents]))
        if_failed = JobGroup.IfFailed[self._if_failed.upper()]
        with vendor(using).transaction(connections[using]):
            group_id = insert_group(self._name, self._callbacks, self._data, using, lambda: None, if_failed=if_failed)
            add_nodes(group_id, nodes, using=using)
            seal(group_id, using=using)
        return group_id

    def _order(self) -> list[str]:
        """The names of the nodes, each after its parents, those without parents first."""
        pairs = 0
        for name, node in self._nodes.items():
            pairs += len(node.parents)
            for parent in node.parents:
                if parent not in self._nodes:
                    raise InvalidValue(
                        f"node {name!r} has an unknown parent: the workflow {self._name!r} has no node {parent!r}. "
                        "Nothing was written; add it, or leave it out."
                    )
        if pairs > PAIRS_MAX:
            raise InvalidValue(
                f"the nodes have {pairs:,} parents together, and {PAIRS_MAX:,} are allowed. Nothing was written; put a "
                "node without work between many parents and many children."
            )
        try:
            order = [*TopologicalSorter({name: node.parents for name, node in self._nodes.items()}).static_order()]
        except CycleError as error:
            way = " -> ".join(error.args[1])
            raise InvalidValue(
                f"the nodes of the workflow {self._name!r} wait for each other: {way:.300}. Nothing was written; each "
                "node runs after its parents, so there must be no cycle."
            ) from None
        return sorted(order, key=lambda name: bool(self._nodes[name].parents))

    def _names_of(self, after: Any) -> list[str]:
        if isinstance(after, (str, Node)):
            raise InvalidType(
                f"after must be a list of nodes, got {after!r:.60}. Nothing was written; write after=[...]."
            )
        check_list(after, "after", Iterable)
        return [*dict.fromkeys(self._name_of(parent) for parent in after)]

    def _name_of(self, parent: Any) -> str:
        if isinstance(parent, str):
            return parent
        if not isinstance(parent, Node):
            raise InvalidType(
                f"after has nodes that add() returned, or their names, got {type(parent).__name__}. "
                "Nothing was written."
            )
        if parent.workflow is not self:
            raise InvalidValue(
                f"{parent!r} is an unknown parent: it belongs to another workflow. Nothing was written; add a node "
                "for it here, or start the other workflow from a node."
            )
        return parent.name

    def _free_name(self, task: AnyTask) -> str:
        base = str(task.module_path).rpartition(".")[2]
        number, found = 1, base
        while found in self._nodes:
            number += 1
            found = f"{base}-{number}"
        return found

    def _checked_name(self, name: str) -> str:
        found = check_group_name(name, "node")
        if found in self._nodes:
            raise InvalidValue(f"there are two nodes {found!r} in the workflow {self._name!r}. Nothing was written.")
        return found

    def _refuse_started(self, call: str) -> None:
        if self._started:
            raise InvalidValue(
                f"{call} comes after the start() of the workflow {self._name!r}. Nothing was written; make another "
                "workflow, or add jobs in a running node with current_job().group.add()."
            )
