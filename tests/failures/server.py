"""A small HTTP server that answers each request with the status in its path, or does worse."""

from __future__ import annotations

import datetime
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.failures.real import World

#: longer than any client of the tests waits
HANGS_SECONDS = 2.0


class Handler(BaseHTTPRequestHandler):
    """/404 answers 404; /hang answers late, /close never, /half with half of the body, /loop with itself.

    What follows a question mark are headers: /429?Retry-After=5.
    """

    def do_GET(self) -> None:
        """Answer."""
        path, _, headers = self.path.partition("?")
        word = path.strip("/")
        if word == "close":
            self.close_connection = True
            self.connection.close()
            return
        if word == "hang":
            time.sleep(HANGS_SECONDS)
            return
        self.send_response_only(int(word) if word.isdigit() else 302 if word == "loop" else 200)
        for name, value in parse_qsl(headers, keep_blank_values=True):
            self.send_header(name, value)
        self.send_header("Location", "/loop")
        self.send_header("Content-Length", "100" if word == "half" else "4")
        self.end_headers()
        self.wfile.write(b"no!\n")
        self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def serve(certificate: Path | None = None) -> Iterator[str]:
    """The URL of a server on a free port; with a certificate, https."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # A client that refuses the certificate, or has gone, is no news here.
    server.handle_error = lambda request, client: None  # type: ignore[method-assign]
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_certificate(path: Path) -> Path:
    """A certificate that no client trusts, with its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "untrusted.invalid")])
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=36500))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


@contextmanager
def surroundings() -> Iterator[World]:
    """An HTTP and an HTTPS server, and a port on which nobody listens."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        certificate = write_certificate(Path(folder) / "server.pem")
        with serve() as url, serve(certificate) as secure_url:
            yield World(url, secure_url, closed.getsockname()[1])
