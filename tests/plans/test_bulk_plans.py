"""A chunk of a bulk verb reads by the primary key, one window after the other, whatever the filter and however rare.

That of a tag reads by the index of the tag, and those jobs by their keys.
"""

import math

import pytest
from django.db import connection
from django.db.models import Max, Min
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue_many
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.exceptions import InvalidValue
from jobqueue.models import Job, JobTag
from jobqueue.runs import walking
from jobqueue.runs.job_filter import matching
from jobqueue.runs.verbs import VERB_STATES, changeable, check_verb
from jobqueue.runs.walking import next_ids, preview
from jobqueue.transitions import claim
from tests.plans.test_plans import SCANS, plan
from tests.plans.test_redrive_plans import INNODB, analyze, reads, run
from tests.purge import wait_for_purge
from tests.settings import FULL, VENDOR

pytestmark = pytest.mark.django_db
TURNS, SEED = (20, 500) if FULL else (2, 500)
WINDOW = 250
STATUSES = (0, 2, 3, 4)
#: entries of an index that a seek looks at besides those it returns; SQLite also counts what begins a statement
SEEKS = 60
#: on SQLite, which counts a step for each comparison: how many simple rows one row with several comparisons counts as
DEEP = 3 if VENDOR == "sqlite" else 1
RUNNING = 60
DAY = 86_400
COMMON, RARE = "app.tasks.common", "app.tasks.rare"
COPY = (
    "INSERT INTO job_queue (queue, status, priority, run_at, payload, task, cause) "
    "SELECT 'q', %s, 0, run_at, payload, %s, 'unknown' FROM job_queue WHERE queue = 'seed'"
)
TAG_ALL = "INSERT INTO job_tag (job_id, tag) SELECT id, 'common' FROM job_queue WHERE queue = 'q'"
#: each in one state with each verb that changes jobs of it, and in any state
FILTERS = {
    "all": {},
    "queue": {"queue": "q"},
    "rare queue": {"queue": "rare"},
    "task": {"task": COMMON},
    "rare task": {"task": RARE},
    "tag": {"tag": "common"},
    "rare tag": {"tag": "rare"},
    "tag and queue": {"tag": "common", "queue": "rare"},
    "cause": {"cause": "unknown"},
    "rare cause": {"cause": "timeout"},
    "worker": {"worker": "w-rare"},
    "queue and task": {"queue": "q", "task": RARE},
    "fingerprint": {"fingerprint": "0123456789abcdef,fedcba9876543210"},
    "ids": {"job_ids": "1,2,3"},
    "ids and tag": {"job_ids": "1,2,3", "tag": "rare"},
    "later ids": {"from_id": "1", "queue": "q"},
}
CASES = [
    (verb, name, state)
    for verb, states in VERB_STATES.items()
    for name in FILTERS
    for state in (None, *states)
    if FULL or state is None or name in ("queue", "rare task")
    # A cause or a fingerprint is that of an ended job, and a worker that of a running one.
    if not (
        ("cause" in name or name == "fingerprint")
        and (verb not in ("retry", "discard", "prune") or state not in (None, "failed"))
    )
    and not (name == "worker" and verb not in ("cancel", "release"))
]


#: InnoDB counts anew by itself soon after the table has grown; SQLite does not before somebody asks for it
STATISTICS = ["of the table"] + ["of an empty table"] * (not INNODB) + ["none"] * (VENDOR == "sqlite")


@pytest.fixture(params=STATISTICS, scope="module")
def many(request, for_all_tests):
    """Jobs of four states in turns, and behind them a few rare ones, of which some are running."""
    with for_all_tests(lambda: load(request.param)):
        yield


def load(statistics):
    enqueue_many("seed", [None] * SEED)
    Job.objects.update(run_at=UtcNowPlus(-3600))
    if statistics == "of an empty table":
        analyze()
    with connection.cursor() as cursor:
        for _ in range(TURNS):
            for status in STATUSES:
                cursor.execute(COPY, [status, COMMON])
        cursor.execute(TAG_ALL)
    rare = enqueue_many("rare", [None] * 20)
    Job.objects.filter(pk__in=rare).update(task=RARE)
    Job.objects.filter(pk__in=rare[:5]).update(status=3, cause="timeout")
    JobTag.objects.bulk_create(JobTag(job_id=job_id, tag="rare") for job_id in rare)
    enqueue_many("running", [None] * RUNNING)
    # No lease runs out while the tests of the module run.
    assert len(claim("running", RUNNING - 5, worker="w", lease_seconds=DAY)) == RUNNING - 5
    assert len(claim("running", 5, worker="w-rare", lease_seconds=DAY)) == 5
    if statistics == "of the table":
        analyze()
    wait_for_purge()


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(walking, "WINDOW", WINDOW)
    monkeypatch.setattr(walking, "SECONDS", 600.0)
    monkeypatch.setattr(walking, "EMPTY_MAX", 10**6)


def cost_of(filters, work):
    """reads() of jobs, and of the tags if one is looked for."""
    # PostgreSQL counts one table after the other.
    return reads(work) + (reads(work, "job_tag") if "tag" in filters and VENDOR == "postgres" else 0)


def bounds():
    found = Job.objects.aggregate(lowest=Min("pk"), highest=Max("pk"))
    return found["lowest"] - 1, found["highest"]


def chunk(verb, filters, after, until, most):
    return next_ids(
        verb, filters, after_id=after, until_id=until, most=most, using="default", since=read_now("default")
    )


def filters_of(name, state):
    found = FILTERS[name] | ({} if state is None else {"state": state})
    if name in ("ids", "ids and tag"):
        # Of all states, from one end of the table to the other.
        ids = [*Job.objects.order_by("pk").values_list("pk", flat=True)]
        found["job_ids"] = ",".join(map(str, ids[:: max(1, len(ids) // 100)]))
    elif name == "later ids":
        found["from_id"] = str(bounds()[0] + SEED)
    return found


def test_a_whole_walk_reads_each_job_once_whatever_is_looked_for(many, small_windows):
    after, until = bounds()
    windows = math.ceil((until - after) / WINDOW)
    # Each row once, the entry that a window begins with, and running jobs by their index.
    most = 2 * DEEP * (until - after) + (SEEKS + 2 * RUNNING) * windows
    for verb, name, state in CASES:
        filters = filters_of(name, state)
        cost = cost_of(filters, lambda: chunk(verb, filters, after, until, 10**6))  # noqa: B023
        assert cost <= most, f"{verb}, {name}, {state}: {cost} reads, at most {most} are allowed"


def test_a_walk_to_few_jobs_of_a_tag_reads_no_others(many, small_windows):
    after, until = bounds()
    for verb, state in [(verb, state) for verb, name, state in CASES if name == "rare tag"]:
        filters = filters_of("rare tag", state)
        cost = cost_of(filters, lambda: chunk(verb, filters, after, until, 10**6))  # noqa: B023
        # The tag's entries and their jobs; of a verb that needs running jobs, or of failed ones, the first of these.
        assert cost <= 2 * DEEP * 20 + 3 * (SEEKS + 2 * RUNNING), f"{verb}, {state}: {cost} reads"


def test_a_chunk_of_what_is_common_ends_with_it(many, small_windows):
    after, until = bounds()
    looked_at = 0
    for verb, name, state in CASES:
        filters = filters_of(name, state)
        ids, reached = chunk(verb, filters, after, until, 50)
        if len(ids) < 50 or reached > after + SEED * len(STATUSES) * 2:
            continue
        looked_at += 1
        cost = cost_of(filters, lambda: chunk(verb, filters, after, until, 50))  # noqa: B023
        # The rows up to its last one.
        most = 2 * DEEP * (reached - after) + (SEEKS + 2 * RUNNING) * (2 + (reached - after) // WINDOW)
        assert cost <= most, f"{verb}, {name}, {state}: {cost} reads, at most {most} are allowed"
    assert looked_at > 10


def test_a_chunk_begins_where_the_last_one_has_ended(many, small_windows):
    """And the last chunks cost no more than the first ones."""
    after, until = bounds()
    costs, at = [], after
    while at < until:
        before = at

        def take(before=before):
            nonlocal at
            at = chunk("prune", {"queue": "q"}, before, until, 50)[1]

        costs.append(reads(take))
    assert max(costs) <= 2 * DEEP * 4 * SEED + (SEEKS + 2 * RUNNING) * 8, costs


@pytest.mark.parametrize("verb", VERB_STATES)
def test_each_look_goes_by_the_key_or_by_an_index_without_a_sort(many, small_windows, verb):
    after, until = bounds()
    for name, state in [(name, state) for one, name, state in CASES if one == verb]:
        filters = filters_of(name, state)
        with CaptureQueriesContext(connection) as captured:
            chunk(verb, filters, after, until, 10**6)
        looks = {query["sql"] for query in captured.captured_queries if "job_queue" in query["sql"]}
        tagged = [query["sql"] for query in captured.captured_queries if "job_tag" in query["sql"]]
        assert looks or "tag" in filters
        assert bool(tagged) == ("tag" in filters)
        # All windows have one plan.
        for look in sorted(looks, key=len)[:1] + sorted(looks, key=len)[-1:] + tagged[:1]:
            found = plan(run, look)
            where = f"{verb}, {name}, {state}:\n{look}\n{found}"
            if VENDOR in SCANS:
                # SQLite: what a look at ids has read is called job_queue, and the table itself j.
                of_ids = "co-routine job_queue" in found
                assert ("scan j\n" if of_ids else SCANS[VENDOR]) not in found, where
            if look in tagged:
                assert ("ix_tag_job" if "job_ids" in filters else "ix_tag") in found, where
                assert "sort" not in found, where
            # PostgreSQL may sort a window, and SQLite the jobs of a list of ids.
            if VENDOR != "postgres" and "VALUES" not in look:
                assert not [word for word in ("filesort", "temp b-tree", "using temporary") if word in found], where


def test_a_preview_counts_all_jobs_that_match_and_names_the_oldest(many):
    _after, until = bounds()
    for verb, name, state in CASES:
        filters = filters_of(name, state)
        rows = matching(filters, "default", up_to=until).filter(changeable(verb, filters))
        expected = sorted(rows.values_list("pk", flat=True))
        found = preview(verb, filters, first=3, using="default")
        assert (found.matched, [job.pk for job in found.first]) == (len(expected), expected[:3]), (verb, name, state)


def test_a_preview_of_a_tag_reads_each_of_its_jobs_once(many):
    for verb, name, state in CASES:
        if name in ("tag", "tag and queue"):
            filters = filters_of(name, state)
            cost = cost_of(filters, lambda: preview(verb, filters, first=3, using="default"))  # noqa: B023
            # Its tag, an id of a list, the job by its key, and rows of those that are counted, which MariaDB keeps.
            most = 8 * DEEP * TURNS * SEED * len(STATUSES) + SEEKS * 20
            assert cost <= most, f"{verb}, {name}, {state}: {cost} reads, at most {most} are allowed"


def test_a_preview_reads_no_more_jobs_than_it_counts(many, monkeypatch):
    """Where the filters are those of an index: of a queue, a state or a worker."""
    monkeypatch.setattr("jobqueue.runs.walking.MATCHED_MAX", 100)
    _after, until = bounds()
    for verb, name, state in CASES:
        # All waiting jobs are due: to find those of the other states of waiting jobs, all of them are looked at.
        looks = ("scheduled", "retrying", "held", "expired")
        if name in ("all", "queue", "rare queue", "worker") and state not in looks:
            filters = filters_of(name, state)
            cost = reads(lambda: preview(verb, filters, first=3, using="default", until_id=until))  # noqa: B023
            # MariaDB reads a row of a window function eight times more, in memory.
            most = (9 if INNODB else 2 * DEEP) * 100 + SEEKS + 2 * RUNNING
            assert cost <= most, f"{verb}, {name}, {state}: {cost} reads, at most {most} are allowed"


def test_what_the_cases_are_is_allowed():
    for verb, name, state in CASES:
        check_verb(verb, FILTERS[name] | ({} if state is None else {"state": state}))
    with pytest.raises(InvalidValue):
        check_verb("release", {"state": "failed"})
