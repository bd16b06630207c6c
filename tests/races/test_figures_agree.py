"""Overview, tabs, lists, `jobs` and bulk verbs say the same numbers as SQL, while other threads add and end jobs."""

import re
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.db import connection, transaction

from jobqueue import enqueue, stats
from jobqueue.admin.jobs import tabs
from jobqueue.admin.overview import reading
from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.runs.verbs import VERB_STATES
from jobqueue.runs.walking import preview
from jobqueue.transitions import ack, cancel, claim, fail
from jobqueue.transitions.releasing import hold_many
from tests.admin.helpers import JOBS, root, text_of
from tests.admin.test_overview_figures import tile
from tests.admin.test_queues import QUEUES as QUEUES_PAGE
from tests.admin.test_queues import rows_of
from tests.cli.helpers import read_json
from tests.groups.nodes import diamond
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.races.actors import Actor
from tests.settings import VENDOR

pytestmark = [committed, finding("O-M12")]
STATES = ("ready", "scheduled", "held", "running", "failed", "canceled", "done")
#: rounds whose figures differ, what the threads may do in each of them, and what they have done before somebody reads
ROUNDS, STEPS, DONE = 4, 60, 20
QUEUES = ("a", "b", "default")


@pytest.fixture(autouse=True)
def all_the_time(monkeypatch):
    """What takes too long is left out of a page, and this machine may be slow."""
    monkeypatch.setattr(tabs, "SECONDS", 600.0)
    monkeypatch.setattr(reading, "READ_SECONDS", 600.0)


def counts_by_sql():
    """The definition, written once more; due are jobs whose run_at is not after this statement."""
    later = f"CASE WHEN run_at > {vendor('default').now_sql} THEN 1 ELSE 0 END"
    found = Counter(dict.fromkeys(STATES, 0))
    with connection.cursor() as cursor:
        sql = f"SELECT status, gate, {later} AS later, COUNT(*) FROM job_queue GROUP BY status, gate, later"
        # With parameters, though there are none: the clock of SQLite has percent signs.
        cursor.execute(sql, ())
        for status, gate, is_later, count in cursor.fetchall():
            if status != Job.Status.READY:
                state = {1: "running", 2: "done", 3: "failed", 4: "canceled"}[status]
            elif gate == HELD_GATE:
                state = "held"
            else:
                state = "scheduled" if is_later or gate == PARENTS_GATE else "ready"
            found[state] += count
    return dict(found)


def of_overview(page):
    """The tiles; there is none of held jobs if there are no such jobs."""
    found = {state: tile(page, state.capitalize()) for state in ("ready", "scheduled", "held", "running", "failed")}
    return {state: text[0].split()[0] if text else "0" for state, text in found.items()}


def of_tabs(page):
    found = dict(re.findall(r'>([A-Z][a-z ]+) <span class="jobqueue-tab-count">([\d,+]+)<', page))
    return {state: found[state.capitalize()] for state in STATES}


def of_lists(client):
    pages = {state: text_of(client.get(JOBS, {"state": state})) for state in STATES}
    feet = {state: re.search(r'"jobqueue-count">([\d,+]*)', page) for state, page in pages.items()}
    return {state: foot[1] or "0" for state, foot in feet.items()}


def of_page_of_queues(page):
    """The columns of the table of queues; "250+" of one queue makes the sum a least number."""
    places = {"ready": 1, "scheduled": 3, "held": 4, "running": 5, "failed": 6}
    found = {}
    for state, place in places.items():
        cells = [cells[place] for cells in rows_of(page).values()]
        total = sum(int(cell.rstrip("+")) for cell in cells)
        found[state] = f"{total}{'+' if any(cell.endswith('+') for cell in cells) else ''}"
    return found


def of_queues(found):
    return {state: sum(one[state] for one in found) for state in ("ready", "scheduled", "held", "running", "failed")}


def of_bulk_verbs():
    """What each verb would change in each of its states."""
    for verb, states in VERB_STATES.items():
        # A retry leaves nodes that wait for their parents as they are, and these are all that is scheduled here.
        wanted = [state for state in states if state in STATES and (verb, state) != ("retry", "scheduled")]
        yield verb, {state: preview(verb, {"state": state}, first=0, using="default").matched for state in wanted}


def everything(client):
    """By the place where they stand, the figures of one instant."""
    cache.clear()
    listed = {state: read_json("list", "--state", state, "--limit", "10000") for state in STATES}
    assert all(found["complete"] for found in listed.values())
    return {
        "overview": of_overview(text_of(client.get("/admin/jobqueue/"))),
        "tabs": of_tabs(text_of(client.get(JOBS))),
        "lists": of_lists(client),
        "snapshot": of_queues([asdict(one) for one in stats.snapshot()]),
        "jobs stats": of_queues(read_json("stats")["queues"]),
        "jobs queues": of_queues(read_json("queues")["queues"]),
        "queues": of_page_of_queues(text_of(client.get(QUEUES_PAGE))),
        "jobs list": {state: len(found["jobs"]) for state, found in listed.items()},
        **dict(of_bulk_verbs()),
    }


@contextmanager
def one_instant():
    """All reads of the block see the rows of one instant; on SQLite others cannot write meanwhile."""
    if VENDOR in ("mysql", "mariadb"):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with transaction.atomic():
        if VENDOR == "postgres":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield


def says(figure, count):
    """Whether a figure is right: "1,055+" means that there are so many or more."""
    text = str(figure).replace(",", "")
    return int(text[:-1]) <= count if text.endswith("+") else int(text) == count


class Writers:
    """Threads that add, claim and end jobs, as many steps as they may."""

    def __init__(self):
        self._may, self._over, self._done = threading.Semaphore(0), False, 0
        self._actors = [Actor(self._run, work) for work in (add, run, run)]

    def _run(self, work):
        number = 0
        while self._may.acquire() and not self._over:
            work(number)
            number += 1
            self._done += 1
        self._may.release()

    def go_on(self):
        """Let them do STEPS more, and return while they do, after DONE of them: readers keep SQLite to themselves."""
        least = self._done + DONE
        self._may.release(STEPS)
        wait_until(lambda: self._done >= least or self._has_failed(), what="the steps of the threads")

    def _has_failed(self):
        return any(actor.done.is_set() for actor in self._actors)

    def end(self):
        """Let them finish; an error of one of them is raised here."""
        self._over = True
        self._may.release()
        for actor in self._actors:
            actor.result()


def add(number):
    enqueue("a", number)
    enqueue("a", number, ordering_key=f"key {number % 2}")
    enqueue("b", number, run_at=read_now("default") + timedelta(hours=1))
    if number % 4 == 0:
        diamond()


def run(number):
    """Claim a job, and let it end in one of all the ways, or go on running."""
    for lease in claim(QUEUES[number % 3], 1, worker=f"w{number % 7}", lease_seconds=36_000):
        if number % 7 == 0:
            hold_many([lease], "held: by the test")
        elif number % 7 == 1:
            fail(lease, error="boom", retry=False)
        elif number % 7 == 2:
            cancel(lease.job_id)
        elif number % 7 == 3:
            continue
        else:
            ack(lease)
    if number % 7 == 2 and (last := Job.objects.due().order_by("-pk").values_list("pk", flat=True).first()):
        cancel(last)


def test_all_figures_of_one_instant_are_those_of_sql_while_jobs_are_added_and_ended():
    client, writers, seen, moved = root(), Writers(), [], []

    def look():
        writers.go_on()
        with one_instant():
            before = counts_by_sql()
            found = everything(client)
            assert counts_by_sql() == before
        wrong = [
            (place, state, figure, before[state])
            for place, figures in found.items()
            for state, figure in figures.items()
            if not says(figure, before[state])
        ]
        assert not wrong
        moved.append(counts_by_sql() != before)
        seen.append(tuple(before.values()))
        all_there = all(any(counts) for counts in zip(*seen, strict=True))
        # Nothing moves on SQLite while somebody reads.
        return len({*seen}) >= ROUNDS and all_there and (any(moved) or VENDOR == "sqlite")

    try:
        wait_until(look, what=lambda: f"rounds in which jobs move: {seen}, {moved}")
    finally:
        writers.end()
