"""reap_leases opens gates, where all workers run with --no-reaper."""

import json
from io import StringIO

import pytest
from django.core.management import call_command

from jobqueue.db.clock import UtcNow
from jobqueue.models import Gate, GateSlot, GateWait
from jobqueue.transitions import ack_many
from tests.gates.helpers import add, take, taken, waiting

pytestmark = pytest.mark.django_db


def reap():
    """What the command says that it did."""
    out = StringIO()
    call_command("reap_leases", "--json", stdout=out)
    told = json.loads(out.getvalue())
    return told["gates_jobs_opened"], told["gates_rows_deleted"]


def test_it_opens_a_job_whose_token_is_there(limited):
    first, second = add(2, limited(rate_limit="1/s"))
    assert taken() == [first]
    assert taken() == []
    Gate.objects.update(opens_at=UtcNow(), used_until=UtcNow())
    assert reap()[0] == 1
    assert taken() == [second]


def test_it_opens_what_a_crash_has_left_behind_a_gate_and_deletes_what_nobody_needs(limited, monkeypatch):
    first, second, third = add(3, limited(concurrency_limit=1))
    leases = take()
    assert list(leases) == [first]
    assert waiting() == [second, third]
    with monkeypatch.context() as crash:
        crash.setattr("jobqueue.gates.waiting.open_first", lambda *args, **kwargs: 0)
        ack_many(leases.values())
    GateWait.objects.filter(pk=third).delete()
    opened, deleted = reap()
    assert opened == 2
    assert deleted == 1
    assert not GateSlot.objects.exists()
    assert taken() == [second]
