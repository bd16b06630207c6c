"""The tutorial is carried out: a new project on SQLite, a real worker, a real kill."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tests.docs.markdown import PAGES, ROOT, name, pieces
from tests.patience import patient
from tests.settings import VENDOR

TUTORIALS = [page for page in PAGES if "tutorial" in page.parts]


class Reader:
    """Does what the page says, in an empty folder."""

    def __init__(self, folder):
        self.folder = folder
        self.background = []
        self.next = ("", "")
        self.printed = lambda: ""
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        env = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "JOBQUEUE_"))}
        self.env = {**env, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def take(self, piece):
        verb, text = self.next
        if piece.kind == "test":
            if piece.verb == "expect":
                self.expect(piece)
            else:
                self.next = (piece.verb, piece.text)
            return
        if verb in ("file", "append"):
            with (self.folder / text).open("a" if verb == "append" else "w") as file:
                file.write(piece.text)
        elif piece.kind == "sh" and verb == "background":
            self.start(piece)
        elif piece.kind == "sh":
            self.run(piece)
        self.next = ("", "")

    def run(self, piece):
        # Packages are there already; a machine without a network can do the rest.
        text = "\n".join(line for line in piece.text.splitlines() if "pip install" not in line and "venv" not in line)
        done = subprocess.run(
            ["bash", "-ec", text], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=patient(90)
        )
        self.printed = lambda: done.stdout + done.stderr
        assert done.returncode == 0, f"{piece}\n{self.printed()}"

    def start(self, piece):
        for process in self.background:
            process.poll()  # as a shell does: what was killed is not a zombie any more
        log = self.folder / f"log{len(self.background)}"
        with log.open("w") as file:
            # exec: the command leads its own process group, as in a terminal.
            self.background.append(
                subprocess.Popen(
                    ["bash", "-c", "exec " + piece.text],
                    cwd=self.folder,
                    env=self.env,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            )
        self.printed = log.read_text

    def expect(self, piece):
        until = time.monotonic() + patient(45)
        while piece.text not in self.printed():
            assert time.monotonic() < until, f"{piece}: {piece.text!r} is not in\n{self.printed()}"
            time.sleep(0.1)

    def end(self):
        for process in self.background:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.skipif(VENDOR != "sqlite", reason="the tutorials use SQLite")
@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_the_tutorial_works(page, tmp_path):
    reader = Reader(tmp_path)
    try:
        for piece in pieces(page):
            reader.take(piece)
    finally:
        reader.end()
