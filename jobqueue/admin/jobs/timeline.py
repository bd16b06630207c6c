"""The course of a job: when it was enqueued and due, and each run with its end; as a list, and as a bar.

The bar is SVG: runs are thick, waiting is thin. The list beside it says the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext

from jobqueue.admin.jobs.states import ShownJob
from jobqueue.admin.page.formatting import plain, relative, short_class, short_worker, span, stamp
from jobqueue.failures import FailureCause
from jobqueue.models import Job
from jobqueue.requested import REQUESTED_ENDS
from jobqueue.signals import RunOutcome

#: runs that are shown, the last ones
RUNS_SHOWN = 10
NAME_CHARS = 100
#: two instants with less time between them are shown as one
_SAME = timedelta(milliseconds=500)
_KINDS: dict[str, str] = {
    FailureCause.LOST: "lost",
    **{end.outcome: "back" if end.again else "canceled" for end in REQUESTED_ENDS},
    RunOutcome.CANCELED: "canceled",
}
_ENDS = {Job.Status.DONE: "done", Job.Status.FAILED: "failed", Job.Status.CANCELED: "canceled"}


class Run(NamedTuple):
    """A run. `ended`: None while it runs, and for a run that was given back, whose end is not stored."""

    number: int
    began: datetime
    ended: datetime | None
    kind: str
    worker: str
    error: str = ""


class Event(NamedTuple):
    """A line of the list. `kind` is the suffix of a class of CSS."""

    at: str
    ago: str
    kind: str
    word: str
    details: list[str]


class Timeline(NamedTuple):
    """`earlier` says how many runs were left out; "" for none. `zone`: the time zone of all instants."""

    bar: str
    events: list[Event]
    earlier: str
    zone: str


def timeline(job: ShownJob, attempts: Sequence[Any]) -> Timeline:
    """The events of a job and its attempts, newest first."""
    every = _runs(job, attempts)
    shown = every[-RUNS_SHOWN:]
    before = every[-RUNS_SHOWN - 1] if len(every) > RUNS_SHOWN else None
    begins = job.created_at if before is None else before.ended or before.began
    runs = [(run.began, _run_event(run, job, prior)) for run, prior in zip(shown, [before, *shown], strict=False)]
    # Of the same instant, in this order.
    found = [*_before(job, shown), *runs, *_ends(job)]
    found.sort(key=lambda one: one[0])
    bar, left_out = draw(_segments(job, shown, begins)), len(every) - len(shown)
    words = ngettext("%(n)d earlier attempt is not shown.", "%(n)d earlier attempts are not shown.", left_out)
    earlier = words % {"n": left_out} if left_out else ""
    return Timeline(bar, [event for _at, event in found], earlier, timezone.get_current_timezone_name())


def _runs(job: ShownJob, attempts: Sequence[Any]) -> list[Run]:
    """All known runs, oldest first."""
    found = [
        Run(
            row.attempt,
            row.started_at or row.ended_at,
            row.ended_at,
            _KINDS.get(row.cause, "failed"),
            row.worker or "",
            plain(short_class(row.error_class), NAME_CHARS),
        )
        for row in attempts
    ]
    began = job.last_started_at
    if began is not None and all(run.began != began for run in found):
        found.append(Run(job.attempt, began, *_own_end(job, began), job.locked_by or job.last_worker or ""))
    return sorted(found, key=lambda run: run.began)


def _own_end(job: ShownJob, began: datetime) -> tuple[datetime | None, str]:
    """The end and the kind of the last run, which has no row of an attempt."""
    if job.status == Job.Status.PROCESSING:
        return None, "running"
    if job.status in (Job.Status.DONE, Job.Status.FAILED):
        return job.finished_at, _ENDS[job.status]
    asked = job.cancel_requested_at
    if job.status == Job.Status.CANCELED and asked is not None and asked >= began:
        return job.finished_at, "canceled"
    return None, "back"


def _event(at: datetime, job: ShownJob, kind: str, word: str, details: Sequence[str] = ()) -> Event:
    return Event(stamp(at), relative(at, job.now), kind, word, [one for one in details if one])


def _run_event(run: Run, job: ShownJob, prior: Run | None) -> Event:
    details = [_waited(run, job, prior), _ran(run, job), plain(short_worker(run.worker)), run.error]
    return _event(run.began, job, run.kind, _word(run), details)


def _word(run: Run) -> str:
    words = {
        "running": gettext("Attempt %(n)d runs"),
        "done": gettext("Attempt %(n)d succeeded"),
        "lost": gettext("Attempt %(n)d was lost"),
        "canceled": gettext("Attempt %(n)d was stopped"),
        "back": gettext("Attempt %(n)d was put back"),
    }
    return words.get(run.kind, gettext("Attempt %(n)d failed")) % {"n": run.number}


def _waited(run: Run, job: ShownJob, prior: Run | None) -> str:
    """How long after what it began."""
    if job.last_started_at == run.began and job.created_at + _SAME < job.run_at <= run.began:
        return gettext("%(time)s after it was due") % {"time": _between(job.run_at, run.began)}
    if prior is not None:
        return gettext("%(time)s after the run before") % {"time": _between(prior.ended or prior.began, run.began)}
    return gettext("%(time)s after it was enqueued") % {"time": _between(job.created_at, run.began)}


def _ran(run: Run, job: ShownJob) -> str:
    if run.kind == "running":
        return gettext("running for %(time)s") % {"time": _between(run.began, job.now)}
    return "" if run.ended is None else gettext("ran %(time)s") % {"time": _between(run.began, run.ended)}


def _between(begins: datetime, ends: datetime) -> str:
    return span(max(0.0, (ends - begins).total_seconds()))


def _before(job: ShownJob, runs: Sequence[Run]) -> list[tuple[datetime, Event]]:
    """When it was enqueued, was or is due, and expires."""
    found = [(job.created_at, "enqueued", gettext("Enqueued"))]
    at_once = any(abs(run.began - job.run_at) < _SAME for run in runs)
    if job.run_at > job.created_at + _SAME and not at_once:
        found.append((job.run_at, "due", gettext("Due")))
    if job.expires_at is not None and job.status == Job.Status.READY:
        found.append((job.expires_at, "due", gettext("Expires")))
    return [(at, _event(at, job, kind, word)) for at, kind, word in found]


def _ends(job: ShownJob) -> list[tuple[datetime, Event]]:
    """When it was asked to stop, and ended."""
    found = []
    if (asked := job.cancel_requested_at) is not None:
        found.append((asked, _event(asked, job, "canceled", gettext("Asked to stop"))))
    if (ended := job.finished_at) is not None and job.status in _ENDS:
        whole = gettext("%(time)s after it was enqueued") % {"time": _between(job.created_at, ended)}
        found.append((ended, _event(ended, job, _ENDS[job.status], _end_word(job), [whole])))
    return found


def _end_word(job: ShownJob) -> str:
    if job.status == Job.Status.DONE:
        return capfirst(gettext("done"))
    if job.status == Job.Status.FAILED:
        return capfirst(gettext("failed for good"))
    return capfirst(gettext("expired")) if job.cause == FailureCause.EXPIRED else capfirst(gettext("canceled"))


def _segments(job: ShownJob, runs: Sequence[Run], begins: datetime) -> list[Segment]:
    """Waiting and running in turn, up to now, to its end, or to the time when it is due."""
    waited, later = gettext("waited %(time)s"), gettext("due in %(time)s")
    found, at = [], begins
    for run in runs:
        ends = run.ended or (job.now if run.kind == "running" else run.began)
        found.append(_segment("wait", at, run.began, waited))
        found.append(_segment(run.kind, run.began, ends, f"{_word(run)}: %(time)s"))
        at = max(at, ends)
    if job.status == Job.Status.READY:
        found.append(_segment("wait", at, job.now, waited))
        found.append(_segment("later", max(at, job.now), job.run_at, later))
    elif job.finished_at is not None:
        found.append(_segment("wait", at, job.finished_at, waited))
    return [one for one in found if one.seconds > 0 or one.kind not in ("wait", "later")]


def _segment(kind: str, begins: datetime, ends: datetime, words: str) -> Segment:
    seconds = max(0.0, (ends - begins).total_seconds())
    return Segment(kind, seconds, words % {"time": span(seconds)})


HEIGHT, THIN = 22, 4
#: the smallest share of the width, so that each part is seen
LEAST = {"wait": 0.006, "later": 0.02}
LEAST_OF_A_RUN = 0.014
#: kinds that are hatched, so that they read without colours
_HATCHED = ("failed", "lost")
_FRAME = (
    '<svg class="jobqueue-bar" width="100%" height="{}" aria-hidden="true"><defs><pattern id="jobqueue-bar-hatch" '
    'width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="jobqueue-bar-line" '
    'x1="0" y1="0" x2="0" y2="6"/></pattern></defs>{}</svg>'
)
_PART = '<g><title>{}</title><rect class="jobqueue-bar-{}" x="{}" y="{}" width="{}" height="{}"/>{}</g>'
_HATCH = '<rect fill="url(#jobqueue-bar-hatch)" x="{}" y="{}" width="{}" height="{}"/>'


class Segment(NamedTuple):
    """A part of the bar."""

    kind: str
    seconds: float
    hint: str


def draw(segments: Sequence[Segment]) -> str:
    """The bar; "" if nothing lasted."""
    return format_html(_FRAME, HEIGHT, format_html_join("", "{}", _parts(segments))) if segments else ""


def _parts(segments: Sequence[Segment]) -> Iterator[tuple[str]]:
    left = 0.0
    for segment, share in zip(segments, _shares(segments), strict=True):
        height = THIN if segment.kind in LEAST else HEIGHT
        place = (f"{100 * left:.2f}%", f"{(HEIGHT - height) / 2:g}", f"{100 * share:.2f}%", height)
        hatch = format_html(_HATCH, *place) if segment.kind in _HATCHED else ""
        yield (format_html(_PART, segment.hint, segment.kind, *place, hatch),)
        left += share


def _shares(segments: Sequence[Segment]) -> list[float]:
    """The share of the width that each part gets: by its time, but at least what a reader can see."""
    total = sum(segment.seconds for segment in segments) or 1.0
    wanted = [max(one.seconds / total, LEAST.get(one.kind, LEAST_OF_A_RUN)) for one in segments]
    return [one / sum(wanted) for one in wanted]
