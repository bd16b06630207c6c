"""The alarm about connections that run out, by connections that have really run out."""

import pytest
from django.db import OperationalError

from jobqueue import enqueue
from jobqueue.alarms import firing
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.retry import Refusal, report_refusal
from jobqueue.lockstats import recorder
from jobqueue.models import LockStat
from tests.alarms.helpers import look_again
from tests.exhausted import LIMITS, no_connection_left
from tests.marks import committed

pytestmark = committed


@pytest.fixture(autouse=True)
def threshold(settings):
    """Two refusals in five minutes are an alarm."""
    settings.JOBQUEUE = {"ALARMS": {"WORKERS": {"refused_connections": 2}}}


def seen():
    """The alarms after two looks."""
    look_again()
    look_again()
    return [(one.queue, one.name, one.value, one.ended_at is None) for one in firing()]


@pytest.mark.parametrize("limit", LIMITS)
def test_it_fires_when_connections_ran_out_and_ends_when_that_is_five_minutes_ago(limit):
    with no_connection_left(limit), pytest.raises(OperationalError):
        enqueue("q", 1)
    assert seen() == []
    recorder.flush()
    assert seen() == [("", "refused_connections", 2.0, True)]
    (one,) = firing()
    assert one.text.endswith("see docs/runbook/no-connection-left.md")
    LockStat.objects.update(counted_at=UtcNowPlus(-301))
    assert seen() == []


def test_other_errors_do_not_count():
    for kind in ErrorKind:
        if kind is not ErrorKind.NO_CONNECTION:
            report_refusal(Refusal("claim", kind, True))
            report_refusal(Refusal("claim", kind, False))
    recorder.flush()
    assert seen() == []
    report_refusal(Refusal("claim", ErrorKind.NO_CONNECTION, True))
    report_refusal(Refusal("enqueue", ErrorKind.NO_CONNECTION, False))
    recorder.flush()
    assert seen() == [("", "refused_connections", 2.0, True)]
