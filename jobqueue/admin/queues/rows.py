"""Queues and circuit breakers as cells of a table, and the addresses of their pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext

from jobqueue.admin.page.addresses import address_of, link, list_address
from jobqueue.admin.page.formatting import NOTHING, badge, hint, mode_badge, plain, relative, span, stacked, stamp
from jobqueue.base.validation import check_queue
from jobqueue.exceptions import JobQueueError
from jobqueue.failures.dependencies import check_dependency
from jobqueue.flow.overview import QueueState
from jobqueue.flow.wording import concurrency_text, count_text
from jobqueue.models import BreakerState
from jobqueue.stats.live import COUNTS

NAME_CHARS, REASON_CHARS = 120, 200
#: jobs of a queue that the list counts; its own page counts more of them
COUNT_MAX = 250
_BREAKERS = {"closed": "done", "open": "failed", "half-open": "expired"}


def queue_page(queue: str, task: str | None = None) -> str:
    """The address of the page of a queue, or of a task in it."""
    return address_of("flowrule_queue", queue=queue, **({"task": task} if task else {}))


def breaker_page(dependency: str) -> str:
    """The address of the page of a circuit breaker."""
    return address_of("flowrule_breaker", dependency=dependency)


def queue_cells(state: QueueState, now: datetime, *, links: bool) -> list[str]:
    """A row of the list; a task stands below its queue. With `links` each count leads to its jobs."""
    most = gettext("of at most %(n)d") % {"n": state.max_ready} if state.max_ready is not None else ""
    return [
        _name(state),
        mode_cell(state, now),
        stacked(count_cell(state, "ready", COUNT_MAX, links=links), most) if state.task is None else "",
        span(state.oldest_age_seconds) if state.oldest_age_seconds else "",
        *(count_cell(state, name, COUNT_MAX, links=links) for name in COUNTS if name != "ready"),
        stacked(*limit_texts(state, "concurrency")),
        stacked(*limit_texts(state, "rate")),
    ]


def mode_cell(state: QueueState, now: datetime) -> str:
    """Whether it runs; why not, who has done that, and until when; and which workers do not know it."""
    word = mode_badge(state.mode or ("paused" if state.starts_nothing else ""))
    return stacked(word, format_html_join("", '<span class="jobqueue-part">{}</span>', _whys(state, now)))


def _whys(state: QueueState, now: datetime) -> Iterator[tuple[str]]:
    if state.mode:
        yield (plain(state.reason, REASON_CHARS),)
    author = gettext("by %(name)s") % {"name": plain(state.by, NAME_CHARS)} if state.by else ""
    if state.since:
        age = hint(relative(state.since, now), stamp(state.since))
        yield (format_html("{}, {}", author, age) if author else age,)
    if state.until:
        yield (hint(gettext("ends %(when)s") % {"when": relative(state.until, now)}, stamp(state.until)),)
    if state.has_limit_of_0:
        yield (gettext("its limit is 0"),)
    if state.unaware_workers:
        yield (
            ngettext(
                "partial: %(n)d worker does not know it",
                "partial: %(n)d workers do not know it",
                state.unaware_workers,
            )
            % {"n": state.unaware_workers},
        )


def breaker_cells(facts: BreakerState, now: datetime) -> list[str]:
    """A row of the list of breakers."""
    return [
        _link(facts.dependency, breaker_page, check_dependency),
        badge(_BREAKERS.get(facts.state, "done"), breaker_word(facts.state)),
        plain(facts.reason, REASON_CHARS) or NOTHING,
        hint(relative(facts.since, now), stamp(facts.since)) if facts.since else NOTHING,
        breaker_next(facts, now),
    ]


def breaker_word(state: str) -> str:
    """The state of a breaker in the active language."""
    return str(BreakerState.State(state).label)


def breaker_next(facts: BreakerState, now: datetime) -> str:
    """What happens next without anybody doing anything."""
    if facts.state == "closed":
        return (
            ngettext("%(n)d failure lately", "%(n)d failures lately", facts.failures) % {"n": facts.failures}
            if facts.failures
            else NOTHING
        )
    if facts.by_hand:
        if facts.until is None:
            return gettext("open until somebody closes it")
        return gettext("closes %(when)s") % {"when": relative(facts.until, now)}
    if facts.probe_at is None:
        return gettext("a probe is running")
    if facts.probe_at <= now:
        return gettext("the next job is a probe")
    return gettext("next probe %(when)s") % {"when": relative(facts.probe_at, now)}


def _name(state: QueueState) -> str:
    if state.task is None:
        return _link(state.queue, queue_page, check_queue)
    name = _link(state.task, lambda task: queue_page(state.queue, task), lambda task: check_queue(state.queue))
    return format_html('<span class="jobqueue-task">{}</span>', name)


def _link(name: str, page: Callable[[str], str], check: Callable[[object], object]) -> str:
    """A name as a link; without one if the page would refuse it: plain SQL may have written any name."""
    try:
        check(name)
    except JobQueueError:
        return plain(name, NAME_CHARS)
    return link(page(name), plain(name, NAME_CHARS))


def count_cell(state: QueueState, name: str, most: int | None = None, *, links: bool) -> str:
    """How many jobs of the queue are in a state, counted up to `most`, with `links` as a link; "" for a task."""
    count = getattr(state, name)
    if count is None:
        return ""
    text = count_text(count, most)
    return link(list_address("job", queue=state.queue, state=name), text) if links and count else text


def limit_texts(state: QueueState, name: str) -> tuple[str, str]:
    """The limit "concurrency" or "rate", and where it comes from if not from the settings or the task's code."""
    text = concurrency_text(state) if name == "concurrency" else state.rate or ""
    if name in state.set_here:
        return text or gettext("no limit"), gettext("set by hand")
    return text or NOTHING, ""
