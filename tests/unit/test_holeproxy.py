"""The proxy of tests of silent connections leaves no session behind that nobody uses."""

import socket
import struct
import time

import pytest

from tests.holeproxy import HoleProxy
from tests.patience import patient


@pytest.fixture
def ends():
    """A client that is connected to a server through the proxy, and the server's side of that."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = HoleProxy(listener.getsockname()[1])
        client = socket.create_connection(("127.0.0.1", proxy.port))
        server, _ = listener.accept()
        with client, server:
            for one in (client, server):
                one.settimeout(patient())
            client.sendall(b"a question")
            assert server.recv(100) == b"a question"
            # So that a thread of the proxy waits for each side, as it does nearly always. Nothing fails if it does not.
            time.sleep(0.1)
            yield proxy, client, server
        proxy.close()


def killed(client):
    """The end that the system makes of a connection whose process is killed with an answer that it has not read."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("end", [killed, socket.socket.close])
def test_the_server_learns_that_a_client_is_gone(ends, end):
    _, client, server = ends
    end(client)
    assert server.recv(100) == b""


def test_the_client_learns_that_its_session_was_killed(ends):
    _, client, server = ends
    killed(server)
    assert client.recv(100) == b""


def test_both_learn_that_the_proxy_has_closed(ends):
    proxy, client, server = ends
    proxy.close()
    assert (client.recv(100), server.recv(100)) == (b"", b"")


def test_nobody_learns_anything_of_a_connection_that_hangs(ends):
    proxy, client, server = ends
    proxy.arm(b"needle")
    client.sendall(b"a needle")
    assert proxy.holed.wait(patient())
    client.close()
    server.settimeout(0.3)
    with pytest.raises(TimeoutError):
        server.recv(100)
