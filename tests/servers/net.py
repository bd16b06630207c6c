"""Ports, and asking servers whether they are ready without any client library."""

import random
import socket
import struct
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"
_LOWEST_PORT = 15000
_LISTENING = "0A"


def free_port() -> int:
    """Return a port of 127.0.0.1 nobody listens on."""
    # A port the kernel also hands out to outgoing connections could be taken by one of them while a test
    # has the server stopped; a client retrying it could even end up connected to itself.
    with suppress(OSError, ValueError):
        ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        for port in random.sample(range(_LOWEST_PORT, ephemeral), 50):
            with suppress(OSError):
                return _bound_port(port)
    return _bound_port(0)


def _bound_port(port: int) -> int:
    with socket.socket() as probe:
        probe.bind((HOST, port))
        return int(probe.getsockname()[1])


def listens(pid: int, port: int) -> bool:
    """Tell whether it is this very process that listens on the port, where the system can tell."""
    table = Path("/proc/net/tcp")
    if not table.exists():
        return True
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    sockets = {
        f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port
    }
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            if str(descriptor.readlink()) in sockets:
                return True
    return False


def _exchange(port: int, request: bytes, size: int) -> bytes:
    with socket.create_connection((HOST, port), timeout=2) as connection:
        connection.sendall(request)
        return connection.recv(size)


def _mysql_version(port: int) -> str:
    greeting = _exchange(port, b"", 256)
    protocol_10 = b"\x0a"
    if greeting[4:5] != protocol_10:
        return ""
    # MariaDB prefixes its version for the sake of old replicas.
    return greeting[5:].split(b"\0")[0].decode().removeprefix("5.5.5-")


def _postgres_answers(port: int) -> bool:
    parameters = b"user\0jobqueue\0database\0jobqueue\0\0"
    protocol_3 = 196608
    answer = _exchange(port, struct.pack("!ii", 8 + len(parameters), protocol_3) + parameters, 1)
    # "R" asks for a password; while the server starts or recovers it sends an error ("E") instead.
    return answer == b"R"


def _redis_version(port: int) -> str:
    if _exchange(port, b"PING\r\n", 7) != b"+PONG\r\n":
        return ""
    for line in _exchange(port, b"INFO server\r\n", 4096).decode(errors="replace").splitlines():
        if line.startswith("redis_version:"):
            return line.partition(":")[2]
    return ""


def ready_version(kind: str, port: int) -> str:
    """Return the version of a server that is ready ("ready" if it does not tell), else an empty string."""
    try:
        if kind == "postgres":
            return "ready" if _postgres_answers(port) else ""
        return _redis_version(port) if kind == "redis" else _mysql_version(port)
    except OSError:
        return ""
