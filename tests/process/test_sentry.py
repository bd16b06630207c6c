"""The code of docs/howto/sentry.md in a worker: its own transport sends each dead job once, to a server of ours."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sentry_sdk.envelope import Envelope

from tests.app import tasks
from tests.marks import committed

pytestmark = committed


class Receiver(BaseHTTPRequestHandler):
    """Keeps the envelopes that it is sent."""

    def do_POST(self):
        """Called by the server."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.envelopes.append(Envelope.deserialize(body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *words):
        """Nothing."""


@pytest.fixture
def sentry():
    """A server on a free port, and what it was sent."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.envelopes = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_failed_run_is_one_event_without_arguments(worker, sentry):
    job_id = tasks.boom.using(max_attempts=2).enqueue().id
    tasks.add.enqueue(1, 2)
    dsn = f"http://key@127.0.0.1:{sentry.server_port}/1"
    group = worker(JOBQUEUE_TEST_PAGE="docs/howto/sentry.md", SENTRY_DSN=dsn)
    group.prints("no attempts left")
    group.signal(15)
    assert group.wait() == 0
    events = [event for envelope in sentry.envelopes if (event := envelope.get_event())]
    assert [event["level"] for event in events] == ["warning", "error"], [event.get("logentry") for event in events]
    for number, event in enumerate(events, 1):
        assert event["exception"]["values"][-1]["type"] == "ValueError"
        assert event["tags"]["task"] == tasks.boom.module_path
        job = {name: event["contexts"]["job"][name] for name in ("id", "attempt", "max_attempts")}
        assert job == {"id": int(job_id), "attempt": number, "max_attempts": 2}
        assert "django" in event["sdk"]["integrations"]
        assert "vars" not in str(event["exception"])
