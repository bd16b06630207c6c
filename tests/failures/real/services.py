"""What clients of mail servers, Redis, brokers, AWS and other services raise."""

from __future__ import annotations

import ftplib
import imaplib
import poplib
import smtplib
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager

import amqp
import boto3
import botocore.config
import botocore.exceptions
import kombu
import redis

from tests.failures.real import Real


class Smtp(socketserver.StreamRequestHandler):
    """Answers each command with the code that the server was made for, from that command on."""

    def handle(self):
        command, answer = self.server.script
        self.wfile.write(answer if command == b"HELLO" else b"220 hello\r\n")
        if not answer:
            return
        for line in self.rfile:
            word = line.split()[0].upper()
            if word == command:
                self.wfile.write(answer)
            elif word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
            elif word == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                self.wfile.write(b"250 ok\r\n")


class Resp(socketserver.StreamRequestHandler):
    """A Redis server that answers the commands of a client's greeting, and all others with an error."""

    def handle(self):
        for line in self.rfile:
            if line.startswith(b"*"):
                words = []
                for _ in range(int(line[1:])):
                    self.rfile.readline()
                    words.append(self.rfile.readline().strip().upper())
                greeting = words[0] in (b"CLIENT", b"SELECT")
                self.wfile.write(b"+OK\r\n" if greeting else self.server.script)


@contextmanager
def scripted(handler, script):
    """The port of such a server."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads, server.script = True, script
        # A client that has gone is no news here.
        server.handle_error = lambda request, client: None
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def send(port):
    with smtplib.SMTP("127.0.0.1", port, timeout=2) as server:
        server.sendmail("a@example.org", ["b@example.org"], "text")


def mail(command, answer):
    def call(world):
        with scripted(Smtp, (command, answer)) as port:
            send(port)

    return call


def redis_answers(answer):
    def call(world):
        with scripted(Resp, answer) as port:
            client = redis.Redis(port=port, protocol=2, retry=None, socket_timeout=2)
            try:
                client.set("a", 1)
            finally:
                client.close()

    return call


def over_tls(port):
    with socket.create_connection(("127.0.0.1", port)) as plain:
        ssl.create_default_context().wrap_socket(plain, server_hostname="example.org")


def s3(url, **options):
    settings = botocore.config.Config(
        retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=1, s3={"addressing_style": "path"}
    )
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "region_name": "eu-west-1"}
    return boto3.client("s3", endpoint_url=url, config=settings, **keys)


def aws_answers(number):
    def call(world):
        client = s3(world.url)
        client.meta.events.register(
            "before-send", lambda request, **_: setattr(request, "url", f"{world.url}/{number}")
        )
        client.head_object(Bucket="bucket", Key="key")

    return call


def ping_with_an_empty_pool(port):
    pool = redis.ConnectionPool(port=port, max_connections=1)
    pool._in_use_connections.add(object())
    pool._created_connections = 1
    pool.get_connection()


def put_an_object(_):
    with kombu.Connection("memory://") as connection:
        connection.SimpleQueue("q").put(object(), serializer="json")


def sleep_for_too_long(_):
    subprocess.run([sys.executable, "-c", "import time; time.sleep(9)"], timeout=0.01, check=True)


MAIL = [
    Real(f"smtplib: {words}", mail(command, answer), cause, kind)
    for command, answer, words, kind, cause in [
        (b"HELLO", b"421 too busy\r\n", "421 as greeting", smtplib.SMTPConnectError, "dependency"),
        (b"HELLO", b"", "the server hangs up", smtplib.SMTPServerDisconnected, "dependency"),
        (b"MAIL", b"451 try later\r\n", "451 to MAIL", smtplib.SMTPSenderRefused, "dependency"),
        (b"MAIL", b"530 log in first\r\n", "530 to MAIL", smtplib.SMTPSenderRefused, "dependency"),
        (b"RCPT", b"450 mailbox busy\r\n", "450 to RCPT", smtplib.SMTPRecipientsRefused, "dependency"),
        (b"RCPT", b"550 no such user\r\n", "550 to RCPT", smtplib.SMTPRecipientsRefused, "data"),
        (b"DATA", b"554 looks like spam\r\n", "554 to DATA", smtplib.SMTPDataError, "data"),
    ]
]
CLOSED = [
    Real(f"{name}: the port refuses", lambda world, call=call: call(world.closed_port), "dependency")
    for name, call in {
        "socket": lambda port: socket.create_connection(("127.0.0.1", port)),
        "smtplib": send,
        "redis": lambda port: redis.Redis(port=port, retry=None).ping(),
        "kombu, AMQP": lambda port: kombu.Connection(f"amqp://127.0.0.1:{port}//").ensure_connection(
            max_retries=1, interval_start=0
        ),
        "kombu, Redis": lambda port: kombu.Connection(f"redis://127.0.0.1:{port}/").ensure_connection(
            max_retries=0, timeout=0.1
        ),
        "amqp": lambda port: amqp.Connection(f"127.0.0.1:{port}", connect_timeout=1).connect(),
        "ftplib": lambda port: ftplib.FTP().connect("127.0.0.1", port),
        "imaplib": lambda port: imaplib.IMAP4("127.0.0.1", port),
        "poplib": lambda port: poplib.POP3("127.0.0.1", port),
        "ssl": over_tls,
        "boto3": lambda port: s3(f"http://127.0.0.1:{port}").head_object(Bucket="bucket", Key="key"),
    }.items()
]
REDIS = [
    Real(f"redis: {answer.split()[0].decode()[1:]}", redis_answers(answer), cause)
    for answer, cause in {
        b"-ERR wrong type\r\n": "data",
        b"-NOSCRIPT no script\r\n": "data",
        b"-READONLY You can't write against a read only replica.\r\n": "dependency",
        b"-LOADING Redis is loading the dataset in memory\r\n": "dependency",
        b"-NOAUTH Authentication required.\r\n": "dependency",
        b"-NOPERM this user has no permissions\r\n": "dependency",
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n": "resource",
    }.items()
]
AWS = [
    Real(f"boto3: HTTP {number}", aws_answers(number), cause, botocore.exceptions.ClientError)
    for number, cause in ((404, "data"), (503, "dependency"), (403, "dependency"))
]
POOLS = [
    Real("redis: an empty pool of connections", lambda world: ping_with_an_empty_pool(world.closed_port), "resource")
]
SERIALIZED = [
    Real("kombu: an object that is no JSON", put_an_object, "data"),
    Real(
        "kombu: a content type that is not accepted",
        lambda _: kombu.serialization.loads(b"x", "application/x-python-serialize", "binary"),
        "data",
    ),
]
PROGRAMS = [Real("subprocess: a program that takes too long", sleep_for_too_long, "dependency")]
GROUPS = [MAIL, CLOSED, REDIS, AWS, POOLS, SERIALIZED, PROGRAMS]
