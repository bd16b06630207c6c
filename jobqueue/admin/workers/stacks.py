"""Where the threads of a worker are: it is asked by a button, and its answer is shown when the page is loaded again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.utils.html import format_html_join
from django.utils.translation import gettext, ngettext

from jobqueue.admin.page.formatting import block, job_link, plain, relative, span
from jobqueue.explain.reports import Standing, report_of
from jobqueue.maintenance import worker_stacks
from jobqueue.models import Worker

if TYPE_CHECKING:
    from jobqueue.admin.workers.states import ShownWorker

JOBS_SHOWN = 10


class Place(NamedTuple):
    """Threads that stand at the same place: how many, of which jobs, since when, and their stack."""

    words: str
    jobs: str
    since: str
    stack: str


class Stacks(NamedTuple):
    """`said`: when it was asked or has answered."""

    said: list[str]
    places: list[Place]


def ask(row_id: int, *, using: str) -> bool:
    """Ask the worker of this row for its stacks. False if it has stopped."""
    rows = Worker.objects.using(using).filter(pk=row_id, stopped_at__isnull=True)
    name = rows.values_list("name", flat=True).first()
    if name is None:
        return False
    worker_stacks.ask([name], using=using)
    return True


def stacks_of(worker: ShownWorker) -> Stacks | None:
    """The last answer of a worker; None if it was never asked."""
    said, places = [], list[Place]()
    if worker.stacks_asked_at is not None:
        asked = {"time": relative(worker.stacks_asked_at, worker.now)}
        said.append(gettext("Asked %(time)s. It answers within seconds: load the page again.") % asked)
    if worker.stacks_at is not None and isinstance(worker.stacks, dict):
        age = max(0.0, (worker.now - worker.stacks_at).total_seconds())
        report = report_of(worker.name, age, worker.stacks)
        answered = {"time": relative(worker.stacks_at, worker.now)}
        if report.answered:
            said.append(gettext("Answered %(time)s.") % answered)
        else:
            said.append(gettext("Looked %(time)s: it ran no Python code, and could not answer.") % answered)
        places = [_place(one) for one in report.standing]
    return Stacks(said, places) if said else None


def _place(one: Standing) -> Place:
    words = ngettext("%(n)d thread", "%(n)d threads", one.threads) % {"n": one.threads}
    ids = [*one.jobs]
    links = format_html_join(", ", "{}", ((job_link(job_id),) for job_id in ids[:JOBS_SHOWN]))
    more = gettext("and %(n)s more") % {"n": len(ids) - JOBS_SHOWN} if len(ids) > JOBS_SHOWN else ""
    since = gettext("at the same place for %(time)s") % {"time": span(one.unchanged_seconds)} if one.looks > 1 else ""
    text = "\n".join(plain(line.text) for line in one.stack)
    return Place(words, format_html_join(" ", "{}", ((part,) for part in (links, more) if part)), since, block(text))
