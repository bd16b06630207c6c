"""What a verb tells others inside a caller's transaction waits for its commit, and is not told after a rollback."""

from __future__ import annotations

import io
import json
import logging

import pytest
from django.core.management import call_command
from django.db import transaction
from django.dispatch import Signal

from jobqueue import enqueue, enqueue_many, flow, group, signals, transitions, workflow
from jobqueue.base.compat import signals as task_signals
from jobqueue.db.callers_transaction import AfterCommit, after_commit, send_after_commit
from jobqueue.exceptions import LeaseLost
from jobqueue.models import AuditEvent, Job
from jobqueue.signals import held_back, job_done
from jobqueue.transitions import ack, fail
from tests.app import kit, tasks
from tests.factories import claim_one, expire, make_in_state, make_job, set_columns, undone
from tests.marks import committed, finding

pytestmark = [committed, finding("F13")]


@pytest.fixture
def heard():
    """The names of the signals that were sent, in order; those of tries and of refusals are left out."""
    names, receivers = [], []
    told = {name: one for name, one in vars(signals).items() if isinstance(one, Signal)}
    for name, one in {**told, "task_enqueued": task_signals.task_enqueued}.items():

        def hear(signal, its_name=name, **facts):
            if its_name != "transaction_retried":
                names.append(its_name)

        one.connect(hear)
        receivers.append((one, hear))
    yield names
    for one, hear in receivers:
        one.disconnect(hear)


def leased(**columns):
    make_job(**columns)
    return claim_one()


def on_its_last_attempt():
    lease = leased()
    set_columns(lease.job_id, max_attempts=1)
    return lease._replace(max_attempts=1)


def lapsed():
    lease = leased()
    expire(lease)
    return lease


def last_of_a_group():
    with group("all", on_done=tasks.group_done) as members:
        members.add(tasks.add, 1, 1)
    return claim_one("default")


def first_of_two_nodes():
    wf = workflow("two")
    wf.add(tasks.add, 1, 1, after=[wf.add(tasks.add, 1, 1)])
    wf.start()
    return claim_one("default")


#: what it needs, the verb, the signals that it sends
VERBS = {
    "enqueue": (lambda: None, lambda _: enqueue("q", 1), ["job_enqueued"]),
    "enqueue with a key": (lambda: None, lambda _: enqueue("q", 1, dedupe_key="k"), ["job_enqueued"]),
    "enqueue_many": (lambda: None, lambda _: enqueue_many("q", [1, 2]), ["job_enqueued"] * 2),
    "enqueue of a task": (lambda: None, lambda _: kit.sells.enqueue("a"), ["job_enqueued", "task_enqueued"]),
    "enqueue_many of a task": (
        lambda: None,
        lambda _: kit.sells.enqueue_many([["a"], ["b"]]),
        ["job_enqueued"] * 2 + ["task_enqueued"] * 2,
    ),
    "ack": (leased, ack, ["job_done"]),
    "ack_many": (leased, lambda lease: transitions.ack_many([lease]), ["job_done"]),
    "fail": (leased, lambda lease: fail(lease, error="boom"), ["job_failed"]),
    "fail for good": (on_its_last_attempt, lambda lease: fail(lease, error="boom"), ["job_dead"]),
    "snooze": (leased, lambda lease: transitions.snooze(lease, delay_seconds=5), ["job_parked"]),
    "cancel": (make_job, transitions.cancel, ["job_canceled"]),
    "cancel_held": (leased, transitions.cancel_held, ["job_canceled"]),
    "discard": (lambda: make_in_state("FAILED"), transitions.discard, ["job_canceled"]),
    "reap": (lapsed, lambda _: transitions.reap(), ["job_reaped"]),
    "the end of a group": (last_of_a_group, ack, ["job_enqueued", "group_ended", "job_done"]),
    "the end of a node": (
        first_of_two_nodes,
        transitions.cancel_held,
        ["job_canceled", "group_ended", "job_canceled"],
    ),
    "pause": (lambda: None, lambda _: flow.pause("q", reason="r"), ["queue_paused"]),
    "a breaker": (lambda: None, lambda _: flow.breaker("mail").open("r"), ["breaker_changed"]),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_signal_waits_for_the_commit(name, heard):
    prepare, verb, wanted = VERBS[name]
    subject = prepare()
    heard.clear()
    with transaction.atomic():
        with transaction.atomic():
            verb(subject)
        assert heard == []
    assert heard == wanted


@pytest.mark.parametrize("name", VERBS)
def test_a_signal_is_not_sent_after_a_rollback(name, heard):
    prepare, verb, wanted = VERBS[name]
    subject = prepare()
    heard.clear()
    with undone():
        verb(subject)
    with transaction.atomic():
        with undone():
            verb(subject)
    assert heard == []
    verb(subject)
    assert heard == wanted


def test_of_a_refusal_is_told_at_once_and_also_after_a_rollback(heard):
    lease = leased()
    ack(lease)
    heard.clear()
    with undone(), pytest.raises(LeaseLost):
        ack(lease)
    assert heard == ["lease_lost"]


def test_the_signals_of_a_block_that_holds_them_back_wait_for_the_callers_commit_too(heard):
    with transaction.atomic():
        with held_back() as deliver:
            with held_back() as deliver_inner:
                send_after_commit(job_done, Job, using="default", job_id=1)
            deliver_inner()
        deliver()
        assert heard == []
    assert heard == ["job_done"]


def test_enqueue_without_receivers_leaves_nothing_for_the_commit():
    with transaction.atomic():
        enqueue("q", 1)
        kit.sells.enqueue("a")
        kit.sells.enqueue_many([["b"]])
        # On PostgreSQL a wake-up waits there.
        waiting = [call for _, call, *_ in transaction.get_connection().run_on_commit]
    assert not [call for call in waiting if isinstance(call, AfterCommit)]


def test_a_line_of_the_log_that_fails_after_the_commit_does_not_reach_the_caller(caplog):
    def fails():
        raise ValueError("after the commit")

    with caplog.at_level(logging.ERROR, "django.db.backends.base"), transaction.atomic():
        after_commit(fails, "default")
    assert "after the commit" in caplog.text


@pytest.mark.parametrize("key", [[], ["--key", "k"]])
def test_the_command_says_that_it_has_added_a_job_though_the_caller_has_not_committed(key):
    def command():
        out = io.StringIO()
        call_command("jobs", "enqueue", kit.sells.module_path, "--args", '["a"]', *key, "--json", stdout=out)
        return json.loads(out.getvalue())["added"]

    with transaction.atomic():
        assert command() is True
        assert command() is (not key)
    assert AuditEvent.objects.count() == Job.objects.count() == (1 if key else 2)
