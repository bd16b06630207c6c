"""What explanations are, and the words for instants, durations, rates, lists and the wait_reason of a job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Flag, IntEnum, auto

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.base.durations import format_seconds
from jobqueue.base.payload import JSON
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.masking import mask_text
from jobqueue.models.group import HELD_BY_PARENTS, WAITS_FOR_PARENTS
from jobqueue.models.job import ALONE_REASON, HELD_REASON, QUARANTINED
from jobqueue.ordering import HALTED, WAITS


class Look(Flag):
    """A look at the database, which finds some codes and is left out as a whole if there is no time for it."""

    NONE = 0
    RULES = auto()  # what operators have set for a queue
    LIMITS = auto()  # of one job
    WORKERS = auto()  # the rows of workers
    STACKS = auto()  # what threads of workers wait for
    JOBS = auto()  # the first jobs of one queue
    BACKLOG = auto()  # the first jobs of all queues
    EACH = JOBS | BACKLOG


@dataclass(frozen=True, slots=True)
class Code:
    """What holds for all explanations of a code, whatever their evidence."""

    looks: Look = Look.NONE
    #: how a wait_reason that begins with the code reads; "": it has no subject; None: no job at a gate has such a one
    words: Promise | str | None = None
    #: somebody wants it, or it ends at a known moment: workers that start nothing because of it do what they should
    is_meant: bool = False
    #: the next step is done on the page of the queue
    on_queue_page: bool = False
    #: each job has a text of its own, so that of one job is an example of the others
    is_example: bool = False
    #: the job runs, and takes long
    runs: bool = False


#: by what `code` may be, in the order of docs/reference/explain.md
CODES = {
    "paused": Code(Look.RULES | Look.BACKLOG, _("task %(subject)s is paused"), is_meant=True, on_queue_page=True),
    "draining": Code(Look.RULES, is_meant=True, on_queue_page=True),
    "held": Code(Look.EACH, is_meant=True, is_example=True),
    "expired": Code(Look.JOBS),
    "key": Code(
        Look.LIMITS | Look.EACH,
        _("all slots of the concurrency key %(subject)s are taken"),
        is_meant=True,
        on_queue_page=True,
    ),
    "parents": Code(Look.EACH, "", is_meant=True, is_example=True),
    "unknown_task": Code(Look.EACH, is_meant=True, is_example=True),
    "not_due": Code(Look.EACH, is_meant=True),
    "breaker": Code(Look.LIMITS | Look.EACH, _("the circuit breaker of %(subject)s is not closed"), is_meant=True),
    "slot": Code(
        Look.LIMITS | Look.EACH, _("all slots of task %(subject)s are taken"), is_meant=True, on_queue_page=True
    ),
    "rate": Code(
        Look.LIMITS | Look.EACH,
        _("the rate limit of %(subject)s is used up for the moment"),
        is_meant=True,
        on_queue_page=True,
    ),
    "no_worker": Code(Look.WORKERS | Look.BACKLOG),
    "database_slow": Code(),
    "host_exhausted": Code(Look.WORKERS),
    "connection": Code(Look.STACKS | Look.EACH),
    "outside_service": Code(Look.STACKS | Look.EACH, runs=True),
    "hanging": Code(Look.STACKS | Look.EACH, runs=True),
    "workers_busy": Code(Look.EACH),
    "monitor_dead": Code(Look.BACKLOG),
    "row_lock": Code(on_queue_page=True),
    "read_only": Code(),
    "running": Code(Look.EACH, runs=True),
    "quarantined": Code(),
    "ended": Code(Look.EACH),
    "clock_skew": Code(Look.WORKERS),
}
#: jobs that a text and the evidence name
JOBS_SHOWN = 10
_UNITS = (("s", 1), ("m", 60), ("h", 3600), ("d", 86_400))


@dataclass(frozen=True, slots=True)
class Explanation:
    """One reason. `code` is one of CODES; `text` and `next_step` are in the active language.

    `evidence` is JSON: what was read, with instants as ISO 8601 in UTC and durations in seconds.
    """

    code: str
    text: str
    evidence: dict[str, JSON]
    next_step: str


def found_by(look: Look) -> list[str]:
    """The codes that a look finds."""
    return [name for name, code in CODES.items() if look in code.looks]


def iso(instant: datetime | None) -> str | None:
    """An instant as evidence has it."""
    return None if instant is None else instant.isoformat()


def seconds_until(instant: datetime, now: datetime) -> float:
    """Seconds from `now` to `instant`; 0 if it has passed."""
    return max(0.0, (instant - now).total_seconds())


def span(seconds: float) -> str:
    """A duration without its sign as short text; tenths of seconds only below ten seconds."""
    size = abs(seconds)
    return format_seconds(size if size < 10 else float(round(size)))


def rate_text(per_second: float) -> str:
    """A rate as set_limit() takes it, in the smallest unit in which it is 1 or more: 10/s, 5/h."""
    unit, seconds = next((one for one in _UNITS if per_second * one[1] >= 1), _UNITS[-1])
    return f"{per_second * seconds:.6g}/{unit}"


def id_list(ids: Sequence[int]) -> str:
    """The first JOBS_SHOWN of some job ids as text."""
    return ", ".join(map(str, ids[:JOBS_SHOWN])) + (", ..." if len(ids) > JOBS_SHOWN else "") or "-"


#: findings that are returned, and queues that each of them names
FINDINGS_MAX, QUEUES_SHOWN = 20, 10
#: keys of the evidence that tell two causes of one code apart; the rest of the evidence is that of one example
_OF_CAUSE = (
    "queue", "task", "concurrency_key", "dependency", "worker_names", "blocking", "host", "resource", "kind", "place",
)  # fmt: skip


class Rank(IntEnum):
    """What comes first, whatever the number of jobs."""

    STOPS_ALL = -2  # whatever the jobs
    BLOCKS = -1  # the others cannot end, or are passed over, because of it
    HOLDS_UP = 0  # due jobs do not start because of it
    MOVES = 1  # the next worker, or the end of other jobs, starts them
    LATER = 2  # they are not due


@dataclass(slots=True)
class Finding:
    """An explanation, with the queues and the number of the jobs that it is about."""

    one: Explanation
    rank: Rank = Rank.HOLDS_UP
    queues: set[str] = field(default_factory=set)
    jobs: int = 0
    capped: bool = False


class Findings:
    """Collects what holds up jobs of many queues: one finding for each cause, with all the jobs that it holds up."""

    def __init__(self, *, cut: bool, counted: bool) -> None:
        """`cut`: not all queues were looked at; not `counted`: neither queues nor their jobs were."""
        self._cut, self._counted = cut, counted
        self._found: dict[object, Finding] = {}

    def add(self, found: Iterable[Finding]) -> None:
        """The first explanation of a cause is kept, the jobs of all are added up."""
        for new in found:
            # The code of these stands for one cause alone, so whatever has it is counted together.
            cause = (new.one.code, *(str(new.one.evidence.get(name)) for name in _OF_CAUSE))
            known = self._found.setdefault(cause, new)
            if known is not new:
                known.rank = min(known.rank, new.rank)
                known.jobs += new.jobs
                known.capped = known.capped or new.capped
                known.queues = known.queues | new.queues

    def told(self) -> list[Explanation]:
        """At most FINDINGS_MAX, likeliest first; [] if nothing was added."""
        order = list(CODES)
        found = sorted(self._found.values(), key=lambda one: (one.rank, -one.jobs, order.index(one.one.code)))
        return [self._told(finding) for finding in found[:FINDINGS_MAX]]

    def _told(self, finding: Finding) -> Explanation:
        names, text = sorted(finding.queues), finding.one.text
        facts = {"text": _ended(text), "jobs": counted(finding.jobs, capped=finding.capped)}
        facts["queues"] = queue_list(names)
        if names:
            if _is_example(finding.one):
                text = gettext("Jobs that wait like this: %(jobs)s, in %(queues)s. The first one: %(text)s")
            elif finding.rank <= Rank.HOLDS_UP:
                text = gettext("%(text)s Due jobs that it holds up: %(jobs)s, in %(queues)s.")
            else:
                text = gettext("%(text)s Jobs: %(jobs)s, in %(queues)s.")
            text = text % facts
        evidence: dict[str, JSON] = finding.one.evidence | {
            "waiting_jobs": finding.jobs if self._counted else None,
            "waiting_capped": finding.capped or not self._counted,
            "queues": list(names[:QUEUES_SHOWN]),
            "queues_total": len(names) if self._counted else None,
            "queues_cut": self._cut,
        }
        return replace(finding.one, text=text, evidence=evidence)


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
    return of_a_key or CODES[one.code].is_example or "gate" in one.evidence


def reason_in_words(wait_reason: str | None, gate: int) -> str:
    """What a job with this wait_reason and `gate` waits for, in the active language; "" for None.

    The code and subject of a gate become a phrase. Of other texts, the secrets are masked.
    """
    if not wait_reason:
        return ""
    code, _, subject = wait_reason.partition(" ")
    if gate != FLOW_GATE:
        return _fixed().get(wait_reason) or mask_text(wait_reason)
    words = CODES[code].words if code in CODES else None
    return str(words) % {"subject": subject} if words else mask_text(wait_reason)


def _fixed() -> dict[str, str]:
    """The words for what is always written in the same way."""
    return {
        WAITS: gettext("waits for earlier jobs with its ordering key"),
        HALTED: gettext("halted: an earlier job of its ordering key failed; resume() lets the key go on"),
        HELD_REASON: gettext("held: its worker process died, or its lease ran out"),
        ALONE_REASON: gettext("held: it is to run in a process of its own"),
        WAITS_FOR_PARENTS: gettext("waits for its parents in the workflow"),
        HELD_BY_PARENTS: gettext("held: a parent did not end well; resume the workflow, or retry the parent"),
        QUARANTINED: gettext("quarantined: it may have killed its workers"),
    }
