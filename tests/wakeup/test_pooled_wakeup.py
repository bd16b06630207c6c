"""Behind a pooler nobody listens: what the server sends would go to whoever has the session then."""

import logging
import struct
import threading

import pytest

from jobqueue.exceptions import NotSupported
from jobqueue.wakeup.notifiers import PostgresNotifier
from jobqueue.worker.monitor.monitor import Listener
from jobqueue.worker.shared.queue_choice import Selection
from jobqueue.worker.shared.wakeup_pipes import WakeupPipes
from jobqueue.worker.shared.worker_options import Options
from tests.marks import committed
from tests.patience import patient
from tests.proxy import CuttingProxy, cutting_proxy
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR != "postgres", reason="the others do not listen")]


class Pooler(CuttingProxy):
    """Like PgBouncer it answers the login with a number of its own for the session."""

    heard = b""

    def answered(self, data):
        begin = data.find(b"K" + struct.pack("!I", 12))
        return data if begin < 0 else data[: begin + 5] + struct.pack("!i", -1_731_852_389) + data[begin + 9 :]

    def _is_to_be_cut(self, asked):
        self.heard += asked
        return super()._is_to_be_cut(asked)


def test_behind_a_pooler_nothing_listens():
    with cutting_proxy(kind=Pooler) as pooler:
        try:
            PostgresNotifier("default").subscribe().close()
            refusal = ""
        except NotSupported as error:
            refusal = str(error)
        assert "pooler such as PgBouncer" in refusal
        assert b"LISTEN" not in pooler.heard


def test_a_monitor_says_so_once_and_polls(caplog):
    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "listener"]

    with cutting_proxy(kind=Pooler), caplog.at_level(logging.WARNING):
        Listener(Options(Selection(), "default"), WakeupPipes([])).start()
        for thread in threads():
            thread.join(patient())
        assert threads() == []
    (said,) = [record.getMessage() for record in caplog.records if "wake-ups" in record.getMessage()]
    assert "Workers poll" in said


def test_a_session_of_ones_own_listens():
    with cutting_proxy():
        PostgresNotifier("default").subscribe().close()
