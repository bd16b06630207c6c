"""What the operating system and Python raise."""

from __future__ import annotations

import asyncio
import csv
import errno
import io
import json
import os
import queue
import resource
import socket
import struct
import sys
import zipfile
import zlib
from contextlib import closing
from decimal import Decimal
from xml.etree import ElementTree

import jsonschema
import yaml
from django.core.signing import loads
from django.core.validators import validate_email
from django.shortcuts import get_object_or_404
from django.template.loader import get_template
from pydantic import BaseModel

from tests.failures.real import Real


def fill_the_disk(_):
    with open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")


def open_too_many_files(_):
    opened = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, before[1]))
    try:
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for number in opened:
            os.close(number)


def listen_where_another_listens(_):
    with socket.create_server(("127.0.0.1", 0)) as first:
        socket.create_server(first.getsockname()).close()


def fill_a_pipe(_):
    reads, writes = os.pipe()
    with closing(os.fdopen(reads, "rb")), closing(os.fdopen(writes, "wb", buffering=0)):
        os.set_blocking(writes, False)
        for _ in range(100):
            os.write(writes, b"x" * 65536)


def write_to_a_closed_pipe(_):
    reads, writes = os.pipe()
    os.close(reads)
    try:
        os.write(writes, b"x")
    finally:
        os.close(writes)


def wait_for_a_silent_socket(_):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.settimeout(0.01)
        client.recv(1)


def read_from_a_reset_socket(_):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted = server.accept()[0]
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        client.recv(1)


def deep(_=None):
    # A library may have raised the limit of this process, and from Python 3.12 on only memory would end the recursion.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        return deeper()
    finally:
        sys.setrecursionlimit(limit)


def deeper():
    return deeper()


async def slow():
    await asyncio.wait_for(asyncio.sleep(9), 0.01)


class Order(BaseModel):
    """An order."""

    amount: int


def missing_404():
    from tests.app.models import Ticket

    get_object_or_404(Ticket.objects.none())


ERRNO = [
    Real("a full disk", fill_the_disk, "resource", OSError),
    Real("too many open files", open_too_many_files, "resource", OSError),
    Real("a port in use", listen_where_another_listens, "resource", OSError),
    Real("a full pipe", fill_a_pipe, "resource", BlockingIOError),
    Real("a pipe that nobody reads", write_to_a_closed_pipe, "dependency", BrokenPipeError),
    Real("a socket that does not answer in time", wait_for_a_silent_socket, "dependency", socket.timeout),
    Real("a connection that was reset", read_from_a_reset_socket, "dependency", ConnectionResetError),
]
#: how -> the number of the error that it must be
NUMBERS = {"a full disk": errno.ENOSPC, "too many open files": errno.EMFILE, "a port in use": errno.EADDRINUSE}
PATHS = [
    Real("a file that does not exist", lambda _: os.stat("/no/such/file"), "data", FileNotFoundError),
    Real("a folder opened as a file", lambda _: os.open("/", os.O_WRONLY), "data", IsADirectoryError),
    Real("a folder made twice", lambda _: os.mkdir("/tmp"), "data", FileExistsError),
    Real("a file listed as a folder", lambda _: os.listdir("/dev/null"), "data", NotADirectoryError),
    Real("a name that is too long", lambda _: os.stat("/" + "x" * 300), "data", OSError),
]
LIMITS = [
    Real("no memory", lambda _: bytearray(2**62), "resource"),
    Real("a recursion that does not end", deep, "resource"),
    Real("an empty queue of Python", lambda _: queue.Queue().get_nowait(), "resource"),
    Real("asyncio.wait_for", lambda _: asyncio.run(slow()), "dependency"),
]
VALUES = [
    Real(how, call, "data")
    for how, call in {
        "json.loads": lambda _: json.loads("{"),
        "a missing key": lambda _: {}["amount"],
        "a missing element": lambda _: [][0],
        "int of a word": lambda _: int("x"),
        "a division by zero": lambda _: 1 / 0,
        "Decimal of a word": lambda _: Decimal("x"),
        "an attribute of None": lambda _: None.amount,
        "bytes that are no UTF-8": lambda _: b"\xff".decode(),
        "next() of nothing": lambda _: next(iter(())),
        "pydantic": lambda _: Order(amount="x"),
        "an e-mail address that is none": lambda _: validate_email("x"),
        "jsonschema": lambda _: jsonschema.validate(1, {"type": "string"}),
        "YAML": lambda _: yaml.safe_load("{"),
        "XML": lambda _: ElementTree.fromstring("<a>"),
        "ZIP": lambda _: zipfile.ZipFile(io.BytesIO(b"x")),
        "zlib": lambda _: zlib.decompress(b"x"),
        "struct": lambda _: struct.unpack("i", b"x"),
        "csv": lambda _: list(csv.reader(["a\x00"], strict=True, dialect="no")),
        "a template that does not exist": lambda _: get_template("no/such.html"),
        "a wrong signature": lambda _: loads("x"),
        "get_object_or_404": lambda _: missing_404(),
    }.items()
]
GROUPS = [ERRNO, PATHS, LIMITS, VALUES]
