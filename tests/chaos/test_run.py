"""make chaos: seeds, schedules, and which faults are left when a failing seed is reduced."""

from argparse import Namespace

import pytest

from tests.chaos import faults, run


def test_a_schedule_is_that_of_its_seed_and_has_each_kind_of_fault():
    planned = faults.schedule("mysql", "7", 30.0)
    assert planned == faults.schedule("mysql", "7", 30.0) != faults.schedule("mysql", "8", 30.0)
    assert len(planned) >= 60
    assert {"crash_server", "restart_server"} - {fault.kind for fault in planned} != set()
    assert {*faults.BY_NAME} - {fault.kind for fault in planned} <= {"crash_server", "restart_server"}
    assert [fault.at for fault in planned] == sorted(fault.at for fault in planned)


def test_a_schedule_has_no_fault_that_its_database_cannot_have():
    assert "kill_sessions" not in {fault.kind for fault in faults.schedule("sqlite", "7", 30.0)}
    assert not {"crash_server", "restart_server", "freeze_server"} & {
        fault.kind for fault in faults.schedule("mysql", "7", 30.0, outages=False)
    }


@pytest.mark.parametrize(("text", "found"), [("7", ["7"]), ("1,5", ["1", "5"]), ("1-3,9", ["1", "2", "3", "9"])])
def test_several_seeds_can_be_named(text, found):
    assert run.seeds(text) == found


def test_a_failing_seed_is_reduced_to_the_faults_that_break_it(monkeypatch, capsys):
    def attempt(options, seed, only):
        return {"violations": ["broken"] if {3, 11} <= {*only} else []}

    monkeypatch.setattr(run, "attempt", attempt)
    assert run.reduced(Namespace(db="mysql", seconds=30.0), "7", 66) == [3, 11]
    assert "make chaos SEED=7 DB=mysql FOR=30s ONLY=3,11" in capsys.readouterr().out
