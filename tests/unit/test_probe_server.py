"""The port of the probes, of which anybody who reaches it may ask what he wants."""

import http.client
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.marks import finding
from tests.patience import patient, wait_until
from tests.process.probe import free_port

on_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
#: connections that are open at once
MOST = 16


@pytest.fixture
def port():
    """The port of the probes of a worker that has just looked for jobs."""
    scoreboard = Scoreboard(1, 1)
    scoreboard.header.monitor_ticked_at = time.monotonic()
    Probe(scoreboard, number := free_port())
    return number


def ask(port, method="GET", host="127.0.0.1"):
    """Status, text and length of an answer."""
    link = http.client.HTTPConnection(host, port, timeout=patient())
    try:
        link.request(method, "/live?x=1")
        answer = link.getresponse()
        return answer.status, answer.read(), answer.headers["Content-Length"]
    finally:
        link.close()


@pytest.fixture
def answering():
    """Says how many threads answer requests to the probes. A browser may still hold connections to Django's server."""
    others = set(threading.enumerate())
    return lambda: sum("process_request_thread" in thread.name for thread in {*threading.enumerate()} - others)


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=[on_ipv6, finding("O-M9")])])
def test_the_probes_answer_on_both_versions_of_the_protocol(port, host):
    assert ask(port, host=host) == (200, b"live\n", "5")


@finding("O-M9")
def test_a_request_for_the_head_gets_the_head_alone(port):
    assert ask(port, "HEAD") == (200, b"", "5")


@finding("O-M8")
def test_many_connections_that_never_finish_their_request_keep_nobody_out(port, answering):
    with ExitStack() as links:
        for _ in range(10 * MOST):
            link = links.enter_context(socket.create_connection(("127.0.0.1", port), timeout=patient()))
            link.sendall(b"G")
            assert answering() <= MOST
        assert ask(port)[0] == 200
        assert answering() <= MOST


def test_a_request_that_comes_byte_by_byte_is_cut_off(port, answering, monkeypatch):
    monkeypatch.setattr("jobqueue.worker.monitor.probe.REQUEST_SECONDS", 1.0)
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.setblocking(False)

        def is_cut_off():
            try:
                link.sendall(b"G")
                return link.recv(1) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True

        wait_until(is_cut_off, what="the end of the connection")
    wait_until(lambda: answering() == 0, what="the end of its thread")


def test_an_end_of_a_connection_is_not_printed(port, answering, capfd):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port), timeout=patient()) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            link.sendall(b"GET /live HTTP/1.0\r\n")
    assert ask(port)[0] == 200
    wait_until(lambda: answering() == 0, what="the end of the threads")
    assert capfd.readouterr().err == ""
