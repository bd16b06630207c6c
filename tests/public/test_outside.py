"""Calls out of a transaction are noticed in development, and cost nothing in production."""

import os
import socket
import subprocess
import sys
import threading
import warnings

import pytest
from django.db import connection, connections, transaction

from jobqueue import conf
from jobqueue.transactions import OutsideCallWarning, forbid_outside_calls, retry_transaction
from tests.app.models import Account
from tests.docs.markdown import ROOT
from tests.marks import committed
from tests.patience import patient

pytestmark = committed


@pytest.fixture
def elsewhere():
    """The address of somebody who listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def call(address):
    with socket.socket() as caller:
        caller.connect(address)


def test_a_connection_that_is_opened_in_the_block_is_warned_about(elsewhere):
    with pytest.warns(OutsideCallWarning, match=f"127.0.0.1:{elsewhere[1]} was opened inside a transaction"):
        with forbid_outside_calls():
            call(elsewhere)


def test_as_an_error_the_call_itself_fails(elsewhere):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(OutsideCallWarning), forbid_outside_calls():
            call(elsewhere)


def test_a_datagram_is_a_call_too():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        with pytest.warns(OutsideCallWarning), forbid_outside_calls():
            sender.sendto(b"x", ("127.0.0.1", 9))


def test_changes_of_files_are_warned_about_where_somebody_asks_for_it(tmp_path):
    (path := tmp_path / "report.csv").write_text("1")
    changes = [lambda: path.write_text("2"), lambda: path.rename(tmp_path / "old.csv"), (tmp_path / "old.csv").unlink]
    for change in changes:
        with pytest.warns(OutsideCallWarning, match="csv"), forbid_outside_calls(files=True):
            change()
    path.write_text("1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with forbid_outside_calls(files=True):
            assert path.read_text() == "1"
            with open(os.devnull, "w"):
                pass
            subprocess.run(["cat"], input=b"through a pipe", stdout=subprocess.DEVNULL, check=True)
        with forbid_outside_calls():
            path.write_text("3")


def test_before_after_and_in_other_threads_nobody_is_warned(elsewhere):
    call(elsewhere)
    with forbid_outside_calls():
        thread = threading.Thread(target=call, args=(elsewhere,))
        thread.start()
        thread.join()
    call(elsewhere)


def test_the_database_may_be_called():
    with forbid_outside_calls():
        connections["default"].close()
        assert Account.objects.count() == 0
        host, port = connection.settings_dict["HOST"], connection.settings_dict["PORT"]
        if host:
            # As a driver in Python does it.
            call((host, int(port)))


def test_retry_transaction_contains_the_block_but_not_what_comes_after_the_commit(elsewhere):
    @retry_transaction
    def work():
        call(elsewhere)

    with pytest.warns(OutsideCallWarning):
        work()

    @retry_transaction
    def later():
        transaction.on_commit(lambda: call(elsewhere))

    later()


def test_an_error_of_the_block_ends_the_watch(elsewhere):
    with pytest.raises(ZeroDivisionError), forbid_outside_calls():
        print(1 / 0)
    call(elsewhere)


def test_a_process_without_debug_and_tests_is_not_watched(monkeypatch, settings):
    assert conf.is_development()
    monkeypatch.setattr(conf, "is_test_run", lambda: False)
    assert not conf.is_development()
    settings.DEBUG = True
    assert conf.is_development()


PLAIN_RUNNER = """
import unittest, warnings
import django; django.setup()
from jobqueue import conf
from django.core import mail
assert not conf.is_test_run()

class Case(unittest.TestCase):
    def test(self):
        self.assertFalse(hasattr(mail, "outbox"))
        self.assertTrue(conf.is_test_run())

result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(Case))
assert result.wasSuccessful() and result.testsRun == 1
"""


def test_a_runner_that_does_not_set_up_the_test_environment_is_recognized():
    run_as_script(PLAIN_RUNNER)


PRODUCTION = """
import sys
hooks = []
sys.addaudithook = hooks.append
import django; django.setup()
from jobqueue.transactions import forbid_outside_calls, retry_transaction
from django.db import connection
import socket
with socket.create_server(("127.0.0.1", 0)) as server, forbid_outside_calls():
    socket.create_connection(server.getsockname(), 5).close()
assert hooks == [], hooks
"""


def test_in_production_no_hook_is_installed():
    run_as_script(PRODUCTION)


def run_as_script(code):
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-W", "error", "-c", code]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=patient())
