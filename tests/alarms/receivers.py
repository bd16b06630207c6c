"""A mail server and a receiver of webhooks, on ports of their own, that keep what they get."""

import email
import json
import socketserver
import threading
from contextlib import contextmanager
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Smtp(socketserver.StreamRequestHandler):
    """As much of RFC 5321 as smtplib speaks."""

    def handle(self):
        self._say("220 sink")
        text = None
        while line := self.rfile.readline():
            word = line.split()[0].upper() if line.split() else b""
            if text is not None:
                if line.rstrip(b"\r\n") == b".":
                    self.server.mails.append(email.message_from_bytes(b"".join(text), policy=default))
                    text = None
                    self._say("250 kept")
                else:
                    text.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            elif word == b"DATA":
                text = []
                self._say("354 go on")
            elif word == b"QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _say(self, line):
        self.wfile.write(f"{line}\r\n".encode())


class _Http(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.requests.append((self.path, self.headers, body))
        if server.hangs:
            server.released.wait()
        self.send_response(server.status)
        if server.location:
            self.send_header("Location", server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words):
        pass


class _SmtpServer(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that has given up is what some tests are about."""


@contextmanager
def _serving(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def smtp_sink():
    """A mail server; `.mails` are the messages, `.port` its port."""
    server = _SmtpServer(("127.0.0.1", 0), _Smtp)
    server.mails, server.port = [], server.server_address[1]
    with _serving(server):
        yield server


@contextmanager
def http_receiver():
    """A receiver of webhooks at `.url`: `.requests` are (path, headers, JSON). `.status`, `.location` and `.hangs` say
    how it answers."""
    server = _HttpServer(("127.0.0.1", 0), _Http)
    server.requests, server.status, server.location = [], 200, None
    server.hangs, server.released = False, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_address[1]}/alarms"
    with _serving(server):
        try:
            yield server
        finally:
            server.released.set()
