"""Ends of whoever carries some work out: its process is killed, or its session ends, at a chosen moment of it."""

from __future__ import annotations

import os
import random
import signal
import threading
import traceback
import warnings

import pytest
from django.db import connection, connections

from tests.faults.finishing import lose_connection
from tests.faults.moments import cut_at
from tests.patience import wait_until
from tests.settings import VENDOR


def before_first(stride):
    """One stride before the first moment of a walk. The seed of the run chooses it, so that runs have other moments."""
    return 1 + random.randrange(stride) - stride


def killed(number, work):
    """A real process that does `work` and gets SIGKILL at this moment; whether it came to that."""
    connections.close_all()
    with warnings.catch_warnings():
        # Other tests may have left idle threads; the child uses none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 70
        try:
            with cut_at(number, lambda *_: os.kill(os.getpid(), signal.SIGKILL), threads=True):
                work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def disconnected(number, work):
    """A thread that does `work` and loses its session at this moment; whether it came to that.

    It goes on, or fails as it likes for what it has lost: it is for others to repair that.
    """
    lost, wrong = [], []

    def lose(wrapper, after):
        lost.append(True)
        lose_connection(wrapper, after)

    def in_thread():
        connection.ensure_connection()
        try:
            with cut_at(number, lose, threads=True):
                work()
        except Exception as error:
            if not lost:
                wrong.append(error)
        connections.close_all()

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert not wrong, wrong
    return bool(lost)


def carry_out_all(step, under_way):
    """Call `step` until no row of `under_way` is left. It returns None while all of them wait for a later try."""

    def goes_on():
        for _ in range(1000):
            if not under_way.all().exists():
                return True
            if step() is None:
                # A row that met a lock is due again in a second.
                return False
        raise AssertionError(f"{under_way.model.__name__}: the work does not end")

    wait_until(goes_on, what=f"the end of the work at {under_way.model.__name__}")


#: a test of each kind of cut
each_cut = pytest.mark.parametrize(
    "cut",
    [
        killed,
        pytest.param(
            disconnected, marks=pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no sessions to end")
        ),
    ],
)
