"""What the tests of alarms share."""

from datetime import timedelta

from jobqueue.alarms.looking import look
from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import JobAlarm


def look_again(seconds=15):
    """A look that comes `seconds` after the one before it."""
    for row in JobAlarm.objects.exclude(looked_at=None):
        for name in ("looked_at", "rising_since"):
            instant = getattr(row, name)
            setattr(row, name, instant and instant - timedelta(seconds=seconds))
        row.save()
    return look(load(), using="default")


def now_due():
    """Let every pause before another try be over."""
    for row in JobAlarm.objects.exclude(send_at=None):
        for notice in row.notices:
            for pending in notice["pending"].values():
                pending["again_at"] = "2000-01-01T00:00:00+00:00"
        row.save()
    JobAlarm.objects.exclude(send_at=None).update(send_at=UtcNowPlus(-1))
