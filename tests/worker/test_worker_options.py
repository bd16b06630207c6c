"""What the options mean for a worker: quotas, leases per queue, switches from the environment."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, get_commands, load_command_class
from django.test import override_settings

from jobqueue.cli import worker_options
from jobqueue.conf import load


def options(*words):
    command = load_command_class(get_commands()["runworker"], "runworker")
    parser = command.create_parser("manage.py", "runworker")
    return worker_options.build(vars(parser.parse_args(list(words))))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [("RELOAD", "0", False), ("RELOAD", "1", True), ("NO_RELOAD", "1", False), ("NO_RELOAD", "0", True)],
)
def test_reload_and_its_opposite_are_heard_from_the_environment(monkeypatch, name, value, wanted):
    monkeypatch.setenv(f"JOBQUEUE_WORKER_{name}", value)
    with override_settings(DEBUG=not wanted):
        assert options().reload is wanted


def test_queues_that_are_typed_come_before_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("JOBQUEUE_WORKER_QUEUES", "web")
    assert str(options().selection) == "web"
    assert str(options("mail").selection) == "mail"
    assert str(options("mail", "--queues", "slow").selection) == "mail, slow"
    assert str(options("--queues", "slow").selection) == "slow"


@override_settings(JOBQUEUE={"QUEUES": {"slow": {"LEASE_SECONDS": 600}, "fast": {"LEASE_SECONDS": 5}}})
def test_a_queues_own_lease_is_used_where_it_is_longer():
    assert load().queue_lease_seconds("slow", 60) == 600
    assert load().queue_lease_seconds("fast", 60) == 60
    assert load().queue_lease_seconds("other", 60) == 60


@pytest.mark.parametrize("words", [("--queues=",), ("--queues", "a,,b"), ("--queues", "a:0"), ("--queues", "a:1001")])
def test_a_queue_list_that_means_nothing_is_refused(words):
    with pytest.raises(CommandError):
        options(*words)


def test_a_connection_budget_that_cannot_hold_is_refused_with_what_would_fit():
    assert options("--max-connections", "24", "--processes", "2", "--concurrency", "4").connections_max == 24
    with pytest.raises(CommandError, match=r"may open 24 connections.*--concurrency 1 fits"):
        options("--max-connections", "18", "--processes", "2", "--concurrency", "4")
    with pytest.raises(CommandError, match="--processes 1 at most"):
        options("--max-connections", "11", "--processes", "8")
    with pytest.raises(CommandError, match="may open 12 connections"):
        options("--max-connections", "6", "--once")


@pytest.mark.parametrize(("in_workers", "most"), [(True, 28), (False, 24)])
def test_a_worker_that_relays_counts_the_connections_of_its_relays(in_workers, most):
    with override_settings(JOBQUEUE={"OUTBOX": {"IN_WORKERS": in_workers}}):
        assert options("--processes", "2", "--concurrency", "4").connections_max == most


def test_max_jobs_is_shared_out_evenly():
    found = options("--max-jobs", "7", "--processes", "3")
    assert [found.quota(index) for index in range(3)] == [3, 2, 2]
    assert options("--max-jobs", "2", "--processes", "8").processes == 2
