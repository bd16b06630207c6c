"""The judgement of a trial: each check finds what it is for, and nothing in a trial without a fault."""

from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace as Row

import pytest

from tests.chaos import checks
from tests.chaos.checks import Evidence


def a_job(pk, queue="plain", status=2, **columns):
    facts = {"attempts": 0, "cause": None, "last_error": None, "expires_at": None, "payload": {"args": [queue, pk]}}
    return Row(pk=pk, queue=queue, status=status, **facts | columns)


def start(job, queue="plain", fence=1, at=1.0, **facts):
    return {"event": "start", "job": job, "queue": queue, "fence": fence, "at": at, "locked_at": at, **facts}


def intent(number, job, kind="plain", key="", position=None):
    return Row(kind=kind, number=number, job=job, key=key, position=position)


def effect(job, kind="plain", number=None, key="", at=1.0, pk=0):
    return Row(pk=pk or job, kind=kind, number=number or job, job=job, key=key, at=at)


def group(**columns):
    return Row(pk=7, state=2, **{"total": 1, "done": 1, "failed": 0, "canceled": 0} | columns)


def evidence(*lines, **tables):
    """Two ordered jobs, a member of a group with its callbacks, and what is added or replaced."""
    jobs = [a_job(1, "keyed"), a_job(2, "keyed"), a_job(3, "groups"), a_job(4, "groups"), a_job(5, "groups")]
    facts = {
        "jobs": {job.pk: job for job in jobs},
        "edges": [(pk, old, new, 1) for pk in range(1, 6) for old, new in ((0, 1), (1, 2))],
        "intents": [intent(1, 1, "keyed", "k", 1), intent(2, 2, "keyed", "k", 2), intent(7, None, "group")],
        "effects": [
            *(effect(pk, "keyed", at=pk + 0.5) for pk in (1, 2)),
            *(effect(pk, kind, 7) for pk, kind in ((3, "member"), (4, "on_success"), (5, "on_done"))),
        ],
        "groups": [group()],
        "members": Counter({(7, 1): 1}),
        "counts": {"counter": 0},
    }
    starts = [start(pk, job.queue, at=float(pk)) for pk, job in facts["jobs"].items()]
    committed = {"event": "committed", "numbers": [1], "calls": ["keyed"]}
    return Evidence(lines=[committed, *starts, *lines], **facts | tables)


def names(found):
    return {violation.partition(":")[0] for violation in checks.violations(found)}


def test_nothing_is_found_in_a_trial_that_went_well():
    assert list(checks.violations(evidence())) == []


def without(found, table, place):
    """The evidence without one of its rows."""
    rows = getattr(found, table)
    rows.pop(place)
    return found


def with_job(job, *lines, **tables):
    """The evidence with one more job, which nobody has asked for an effect."""
    found = evidence(*lines, **tables)
    found.jobs[job.pk] = job
    return found


def event(what, **facts):
    return {"event": what, "at": 1.0, **facts}


def locks(*holders):
    """Holders of a lease lock: fence, from, until."""
    for fence, since, until in holders:
        yield event("got", name="l", lock_fence=fence, asked=since) | {"at": since}
        yield event("left", name="l", lock_fence=fence) | {"at": until}


#: as of evidence()
EDGES, EFFECTS, INTENTS = evidence().edges, evidence().effects, evidence().intents
EXPIRED = datetime(2026, 1, 1, tzinfo=UTC)
BROKEN = {
    "a lost job": ("nothing_is_lost", lambda: without(evidence(), "jobs", 1)),
    "a lost intent": ("nothing_is_lost", lambda: without(evidence(), "intents", 0)),
    "a rolled back call with an effect": ("nothing_is_lost", lambda: evidence(event("undone", numbers=[2]))),
    "a job that waits for ever": ("all_have_ended", lambda: with_job(a_job(9, "locked", 0))),
    "a second end": ("states_follow_the_machine", lambda: evidence(edges=[*EDGES, (1, 2, 3, 1)])),
    "a state without a change": (
        "states_follow_the_machine",
        lambda: evidence(edges=[*EDGES, (1, 2, 0, 1)]),
    ),
    "a retry that nobody asked for": (
        "states_follow_the_machine",
        lambda: with_job(
            a_job(9, "groups", 3, cause="lost"),
            edges=[*EDGES, (9, 0, 1, 1), (9, 1, 3, 1), (9, 3, 0, 1), (9, 0, 1, 2), (9, 1, 3, 2)],
        ),
    ),
    "a start without a claim": ("starts_have_claims", lambda: evidence(start(1, "keyed", fence=2, at=9.0))),
    "two starts by one claim": ("starts_have_claims", lambda: evidence(start(2, "keyed", at=9.0))),
    "two effects": ("effects_happen_once", lambda: evidence(effects=[*EFFECTS, effect(1, "keyed", pk=99)])),
    "an effect of a job that failed": (
        "effects_happen_once",
        lambda: with_job(a_job(9, "groups", 3, cause="lost"), effects=[*EFFECTS, effect(9)]),
    ),
    "a DONE job without its effect": ("effects_happen_once", lambda: with_job(a_job(9))),
    "a job that failed for good": ("jobs_end_as_meant", lambda: with_job(a_job(9, "plain", 3))),
    "a job that nobody canceled": ("jobs_end_as_meant", lambda: with_job(a_job(9, "keyed", 4))),
    "the second job of a key first": (
        "keys_keep_their_order",
        lambda: evidence(effects=[effect(1, "keyed", at=2.5), *EFFECTS[1:]]),
    ),
    "too many starts in a second": (
        "rates_hold",
        lambda: evidence(*(start(100 + n, "rated", at=n / 100) for n in range(30))),
    ),
    "a lost group": ("groups_end_once", lambda: without(evidence(), "groups", 0)),
    "a wrong count of members": ("groups_end_once", lambda: evidence(groups=[group(total=2, done=2)])),
    "a callback twice": (
        "groups_end_once",
        lambda: evidence(effects=[*EFFECTS, effect(6, "on_done", 7)]),
    ),
    "two jobs of a dedupe key": (
        "dedupe_keys_are_unique",
        lambda: evidence(intents=[*INTENTS, intent(50, 1, "dedupe", "d"), intent(50, 2, "dedupe", "d")]),
    ),
    "no run after a unique enqueue": (
        "unique_jobs_run_afterwards",
        lambda: evidence(event("unique", job=1, asked=5)),
    ),
    "half of many rows": (
        "outcomes_are_right",
        lambda: with_job(a_job(9, "rows", payload={"number": 9}), event("alone", number=9, rows=3, outcome="unknown")),
    ),
    "an event that was not delivered": (
        "events_are_delivered",
        lambda: evidence(intents=[*INTENTS, intent(60, None, "event")]),
    ),
    "an event that overtook another": (
        "events_are_delivered",
        lambda: evidence(
            *(event(name, number=number) for number in (61, 60) for name in ("try", "delivered")),
            intents=[*INTENTS, *(intent(60 + n, None, "event", "e", n) for n in (0, 1))],
        ),
    ),
    "two holders": ("lease_locks_have_one_holder", lambda: evidence(*locks((1, 1.0, 2.0), (2, 1.5, 2.5)))),
    "a fence that came again": ("lease_locks_have_one_holder", lambda: evidence(*locks((1, 1.0, 2.0), (1, 3.0, 4.0)))),
    "a lost update": ("a_mutex_loses_no_update", lambda: evidence(counts={"counter": 1})),
    "a start in a paused queue": (
        "a_pause_holds",
        lambda: with_job(a_job(9), start(9, at=20.0), event("pause", since=10.0, until=30.0)),
    ),
    "a start after its expiry": (
        "nothing_begins_after_its_expiry",
        lambda: with_job(a_job(9, expires_at=EXPIRED), start(9, at=EXPIRED.timestamp() + 1)),
    ),
    "a tick with two jobs": (
        "ticks_fire_once",
        lambda: evidence(effects=[*EFFECTS, *(effect(pk, "tick", key="00:02") for pk in (90, 91))]),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_promise_is_found(case):
    check, broken = BROKEN[case]
    assert check in names(broken())


def test_each_check_is_shown_to_find_something():
    assert {check for check, _ in BROKEN.values()} == {check.__name__ for check in checks.CHECKS}
