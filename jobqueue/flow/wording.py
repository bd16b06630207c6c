"""What pauses, drains and limits do, in sentences: for the admin in the active language, and for the command line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.utils import timezone
from django.utils.translation import gettext, ngettext

from jobqueue.flow.overview import COUNT_MAX, QueueState


def count_text(count: int, most: int | None = None) -> str:
    """A count as text; "10000+" if it stopped at `most` (default COUNT_MAX)."""
    return f"{count}+" if count >= (most or COUNT_MAX) else str(count)


def concurrency_text(state: QueueState) -> str:
    """How many jobs run at once, such as "5" or "2 to 8, now 4"; "" for no limit."""
    if isinstance(state.concurrency, tuple):
        least, most = state.concurrency
        return gettext("%(least)d to %(most)d, now %(level)d") % {"least": least, "most": most, "level": state.level}
    return "" if state.concurrency is None else str(state.concurrency)


def instant_text(instant: datetime) -> str:
    """An instant in the active time zone, such as "2026-01-31 18:00:00 KST"."""
    return f"{timezone.localtime(instant):%Y-%m-%d %H:%M:%S %Z}"


def after_pause(state: QueueState) -> Iterator[str]:
    """What holds after pause() of this queue or task."""
    yield _stopped(state)
    if state.until is not None:
        yield gettext("It resumes by itself at %(at)s.") % {"at": instant_text(state.until)}
    if state.has_limit_of_0:
        yield gettext("A limit of 0 pauses it, too.")
    yield from partial(state)


def after_drain(state: QueueState) -> Iterator[str]:
    """What holds after drain() of this queue."""
    yield gettext("Queue %(queue)s is draining: new jobs are refused, and the jobs that are there are worked off.") % {
        "queue": state.queue
    }
    yield from _still_stopped(state)


def after_resume(state: QueueState, changed: bool) -> Iterator[str]:
    """What holds after resume() of this queue or task, which returned `changed`."""
    place = _place(state)
    if not changed and state.task:
        yield gettext("Task %(task)s of queue %(queue)s was not paused; nothing was changed.") % place
    elif not changed:
        yield gettext("Queue %(queue)s was neither paused nor draining; nothing was changed.") % place
    elif state.task:
        yield gettext("Task %(task)s of queue %(queue)s is resumed.") % place
    else:
        yield gettext("Queue %(queue)s is resumed.") % place
    yield from _still_stopped(state)


def after_limit(state: QueueState, *, concurrency: bool, rate: bool) -> Iterator[str]:
    """What holds after set_limit() of this queue or task, with these arguments."""
    if (concurrency and state.concurrency == 0) or (rate and state.rate == "0"):
        yield _stopped(state)
        yield gettext("Set another limit, or clear it, to start jobs again.")
    else:
        if concurrency:
            yield _concurrency(state)
        if rate:
            yield _rate(state)
        yield from _still_stopped(state)
    yield from partial(state)


def after_clear(state: QueueState, changed: bool) -> Iterator[str]:
    """What holds after clear_limit() of this queue or task, which returned `changed`."""
    place = _place(state)
    if not changed and state.task:
        yield gettext("No limit was set for task %(task)s of queue %(queue)s; nothing was changed.") % place
    elif not changed:
        yield gettext("No limit was set for queue %(queue)s; nothing was changed.") % place
    elif state.task:
        yield gettext("Task %(task)s of queue %(queue)s has the limits of its code again.") % place
    else:
        yield gettext("Queue %(queue)s has the limits of the settings again.") % place
    yield from _still_stopped(state)


def partial(state: QueueState) -> Iterator[str]:
    """Which workers do not follow what is set."""
    if state.unaware_workers:
        yield ngettext(
            "This is partial: %(n)d running worker does not know it. Restart that worker with the present code and "
            "settings.",
            "This is partial: %(n)d running workers do not know it. Restart those workers with the present code and "
            "settings.",
            state.unaware_workers,
        ) % {"n": state.unaware_workers}


def _place(state: QueueState) -> dict[str, str]:
    return {"queue": state.queue, "task": state.task or ""}


def _stopped(state: QueueState) -> str:
    place = _place(state)
    if state.task:
        return gettext("Task %(task)s of queue %(queue)s is paused; jobs that run go on.") % place
    if not state.running:
        return gettext("Queue %(queue)s is paused; none of its jobs is running.") % place
    return ngettext(
        "Queue %(queue)s is paused; %(n)s job that runs goes on.",
        "Queue %(queue)s is paused; %(n)s jobs that run go on.",
        state.running,
    ) % (place | {"n": count_text(state.running)})


def _still_stopped(state: QueueState) -> Iterator[str]:
    """Why nothing starts all the same."""
    if state.has_limit_of_0:
        yield gettext("It is still paused by a limit of 0.")
    elif state.starts_nothing:
        yield gettext("It is still paused.")


def _concurrency(state: QueueState) -> str:
    place = _place(state)
    if state.concurrency is None and state.task:
        return gettext("Any number of jobs of task %(task)s in queue %(queue)s run at once.") % place
    if state.concurrency is None:
        return gettext("Any number of jobs of queue %(queue)s run at once.") % place
    values = place | {"n": concurrency_text(state)}
    if state.task:
        return gettext("At most %(n)s jobs of task %(task)s in queue %(queue)s run at once.") % values
    return gettext("At most %(n)s jobs of queue %(queue)s run at once.") % values


def _rate(state: QueueState) -> str:
    place = _place(state)
    if state.rate is None and state.task:
        return gettext("Jobs of task %(task)s in queue %(queue)s start at any rate.") % place
    if state.rate is None:
        return gettext("Jobs of queue %(queue)s start at any rate.") % place
    values = place | {"rate": state.rate}
    if state.task:
        return gettext("Jobs of task %(task)s in queue %(queue)s start at no more than %(rate)s.") % values
    return gettext("Jobs of queue %(queue)s start at no more than %(rate)s.") % values
