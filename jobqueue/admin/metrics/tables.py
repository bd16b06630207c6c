"""The sums of a range in words: the figures at the top, and a row for each queue and each task."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.metrics.filters import Filters
from jobqueue.admin.metrics.reading import ROWS_SHOWN, Figures, Sums
from jobqueue.admin.page.addresses import link
from jobqueue.admin.page.cells import Column, Table, table_of
from jobqueue.admin.page.formatting import NOTHING, hint, number, plain, short_task, span
from jobqueue.admin.page.rates import is_high, marked
from jobqueue.stats.ends import Ends

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

NAME_CHARS = 80
MEDIAN, MOST = 0.5, 0.95
_FIGURES = (
    Column(_("Ended"), is_number=True),
    Column(_("Failed for good"), is_number=True),
    Column(_("Failed runs"), is_number=True),
    Column(_("Wait, median"), is_number=True),
    Column(_("Wait, 95 %"), is_number=True),
    Column(_("Run time, median"), is_number=True),
    Column(_("Run time, 95 %"), is_number=True),
    Column(_("Total run time"), is_number=True),
)


class Tile(NamedTuple):
    """A figure, with a note below it."""

    word: StrOrPromise
    figure: str
    note: str
    is_bad: bool = False


def tiles(total: Ends, filters: Filters) -> list[Tile]:
    """The sums of the range."""
    dead = gettext("%(n)s failed for good") % {"n": number(total.dead)} if total.dead else ""
    retried = ngettext("%(n)s run was retried", "%(n)s runs were retried", total.retried) % {"n": number(total.retried)}
    busy = total.run_us / 1e6 / filters.span.length.total_seconds()
    at_a_time = gettext("%(n)s at a time on average") % {"n": number(busy)} if busy >= 0.01 else ""
    return [
        Tile(_("Ended"), number(total.ended), dead),
        Tile(_("Failed runs"), _percent(total.error_rate), retried if total.retried else "", is_high(total.error_rate)),
        Tile(_("Wait, median"), _time(total.wait_seconds(MEDIAN)), _most(total.wait_seconds(MOST))),
        Tile(_("Run time, median"), _time(total.run_seconds(MEDIAN)), _most(total.run_seconds(MOST))),
        Tile(_("Total run time"), span(total.run_us / 1e6), at_a_time),
    ]


def _most(seconds: float | None) -> str:
    return "" if seconds is None else gettext("95 %% at most %(time)s") % {"time": span(seconds)}


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else span(seconds)


def _percent(share: float | None) -> str:
    if share is None:
        return NOTHING
    # A share above 0 must not be rounded to 0 %.
    return gettext("below 0.1 %") if 0 < share < 0.001 else f"{number(round(100 * share, 1))} %"


def by_queue(found: Figures, filters: Filters) -> Table:
    """A row for each queue; its name leads to the queue alone."""
    rows = [_row(_queue(name, filters), one) for name, one in found.queues.rows]
    return table_of([Column(_("Queue")), *_FIGURES], rows)


def by_task(found: Figures, filters: Filters) -> Table:
    """A row for each task; its name leads to the task alone."""
    rows = [_row(_task(name, filters), one) for name, one in found.tasks.rows]
    return table_of([Column(_("Task")), *_FIGURES], rows)


def left_out(sums: Sums) -> str:
    """What a table leaves out; empty if it has all."""
    facts = {"shown": number(ROWS_SHOWN), "n": number(sums.number)}
    return gettext("The %(shown)s with the most ended jobs, of %(n)s.") % facts if sums.number > ROWS_SHOWN else ""


def _queue(name: str, filters: Filters) -> str:
    if not name:
        return gettext("(others)")
    return link(filters.address(queue=name), plain(name, NAME_CHARS))


def _task(name: str, filters: Filters) -> str:
    if not name:
        return gettext("(handler)")
    shown = hint(plain(short_task(name), NAME_CHARS), plain(name))
    return link(filters.address(task=name), shown)


def _row(name: str, ends: Ends) -> list[str]:
    return [
        name,
        number(ends.ended),
        number(ends.dead) if ends.dead else NOTHING,
        marked(ends.error_rate, _percent(ends.error_rate)),
        _time(ends.wait_seconds(MEDIAN)),
        _time(ends.wait_seconds(MOST)),
        _time(ends.run_seconds(MEDIAN)),
        _time(ends.run_seconds(MOST)),
        span(ends.run_us / 1e6) if ends.run_us else NOTHING,
    ]
