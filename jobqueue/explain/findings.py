"""What holds up jobs of many queues: one finding for each cause, ordered by the number of due jobs that it holds up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import IntEnum

from django.utils.translation import gettext

from jobqueue.explain.explanation import CODES, Explanation
from jobqueue.payload import JSON

#: findings that are returned, and queues that each of them names
FINDINGS_MAX, QUEUES_SHOWN = 20, 10
#: keys of the evidence that tell two causes of one code apart; the rest of the evidence is that of one example
_OF_CAUSE = (
    "queue", "task", "concurrency_key", "dependency", "worker_names", "blocking", "host", "resource", "kind", "place",
)  # fmt: skip
_EXAMPLES = ("held", "parents", "unknown_task")


class Rank(IntEnum):
    """What comes first, whatever the number of jobs."""

    STOPS_ALL = -2  # whatever the jobs
    BLOCKS = -1  # the others cannot end, or are passed over, because of it
    HOLDS_UP = 0  # due jobs do not start because of it
    MOVES = 1  # the next worker, or the end of other jobs, starts them
    LATER = 2  # they are not due


@dataclass(slots=True)
class _Finding:
    one: Explanation
    rank: Rank
    jobs: int = 0
    capped: bool = False
    queues: set[str] = field(default_factory=set)


class Findings:
    """Collects explanations, each with the queues and the number of the jobs that it is about."""

    def __init__(self, *, cut: bool) -> None:
        """`cut`: not all queues were looked at."""
        self._cut = cut
        self._found: dict[object, _Finding] = {}

    def add(
        self, one: Explanation, queues: Collection[str], jobs: int, *, capped: bool = False, rank: Rank = Rank.HOLDS_UP
    ) -> None:
        """The first explanation of a cause is kept, the jobs of all are added up."""
        # The code of these stands for one cause alone, so whatever has it is counted together.
        cause = (one.code, *(str(one.evidence.get(name)) for name in _OF_CAUSE))
        finding = self._found.setdefault(cause, _Finding(one, rank))
        finding.rank = min(finding.rank, rank)
        finding.jobs += jobs
        finding.capped = finding.capped or capped
        finding.queues.update(queues)

    def told(self) -> list[Explanation]:
        """At most FINDINGS_MAX, likeliest first; [] if nothing was added."""
        found = sorted(self._found.values(), key=lambda one: (one.rank, -one.jobs, CODES.index(one.one.code)))
        return [self._told(finding) for finding in found[:FINDINGS_MAX]]

    def _told(self, finding: _Finding) -> Explanation:
        names = sorted(finding.queues)
        facts = {
            "text": _ended(finding.one.text) if names else finding.one.text,
            "jobs": counted(finding.jobs, capped=finding.capped),
        }
        facts["queues"] = queue_list(names)
        if not names:
            text = "%(text)s"
        elif _is_example(finding.one):
            text = gettext("Jobs that wait like this: %(jobs)s, in %(queues)s. The first one: %(text)s")
        elif finding.rank <= Rank.HOLDS_UP:
            text = gettext("%(text)s Due jobs that it holds up: %(jobs)s, in %(queues)s.")
        else:
            text = gettext("%(text)s Jobs: %(jobs)s, in %(queues)s.")
        evidence: dict[str, JSON] = finding.one.evidence | {
            "waiting_jobs": finding.jobs,
            "waiting_capped": finding.capped,
            "queues": list(names[:QUEUES_SHOWN]),
            "queues_total": len(names),
            "queues_cut": self._cut,
        }
        return replace(finding.one, text=text % facts, evidence=evidence)


def uncounted(one: Explanation) -> Explanation:
    """An explanation of the backlog of which neither jobs nor queues were counted."""
    evidence: dict[str, JSON] = {"waiting_jobs": None, "waiting_capped": True}
    evidence |= {"queues": [], "queues_total": None, "queues_cut": True}
    return replace(one, evidence=one.evidence | evidence)


def counted(number: int, *, capped: bool) -> str:
    """A number of jobs as text."""
    return f"{number}{'+' if capped else ''}"


def queue_list(names: Collection[str]) -> str:
    """The first QUEUES_SHOWN names of queues as text."""
    shown = sorted(names)[:QUEUES_SHOWN]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "")


def _ended(text: str) -> str:
    """`text` with a full stop, for another sentence to follow: the reason that somebody gave may have none."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _is_example(one: Explanation) -> bool:
    of_a_key = one.code == "key" and one.evidence.get("kind") == "ordering"
    return of_a_key or one.code in _EXAMPLES or "gate" in one.evidence
