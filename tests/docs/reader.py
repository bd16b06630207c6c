"""Does what a page says, in a project of its own on SQLite, and compares what is printed."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress

from tests.docs.markdown import ROOT
from tests.docs.printed import pattern, steady
from tests.launch import Forked
from tests.patience import patient, wait_until

PASSWORD = "a password for the tutorial"
BROWSE = (
    "import html, re; from django.test import Client; client = Client(HTTP_HOST='127.0.0.1:8000'); "
    "assert client.login(username='ada', password={password!r}); page = client.get({path!r}); "
    "assert page.status_code == 200, page; "
    "print(' '.join(html.unescape(re.sub(r'<script.*?</script>|<[^>]+>', ' ', page.text, flags=re.S)).split()))"
)


class Output:
    """What a block has printed, or goes on printing."""

    def __init__(self, read, goes_on=False):
        self.read, self.seen, self.goes_on = read, 0, goes_on

    def expect(self, shown, where):
        """Wait until `shown` is printed after what was expected of it before."""
        wanted = pattern(shown)

        def look():
            return wanted.search(steady(self.read()), self.seen)

        def missing():
            return f"{where}: {shown!r} in\n{self.read()[self.seen :]}"

        found = wait_until(look, what=missing) if self.goes_on else look()
        assert found, missing()
        self.seen = found.end()


class Reader:
    """Does what the page says, in a folder that is empty at first."""

    def __init__(self, folder):
        self.folder = folder
        self.background = []
        self.next = ("", "")
        self.printed = self.worker = Output(lambda: "")
        self.began = self.first_job_seconds = None
        self.may_fail = False
        self.number = None
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        env = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "JOBQUEUE_"))}
        # Where CI is set, a worker does not watch the code unless it is told to.
        env.pop("CI", None)
        env |= {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.env = {**env, "DJANGO_SUPERUSER_PASSWORD": PASSWORD}

    def take(self, piece):
        verb, text = self.next
        if piece.kind == "text":
            self.expect(piece)
            return
        if piece.kind == "test":
            self.do(piece)
            return
        if verb in ("file", "append"):
            with (self.folder / text).open("a" if verb == "append" else "w") as file:
                file.write(("\n\n" if verb == "append" else "") + piece.text)
        elif piece.kind == "sh" and verb == "background":
            self.start(piece)
        elif piece.kind == "sh" and verb != "skip":
            self.run(piece)
        self.next = ("", "")

    def expect(self, piece):
        """AssertionError unless what was done last prints this."""
        self.printed.expect(piece.text, piece)

    def do(self, piece):
        if piece.verb == "expect":
            self.expect(piece)
        elif piece.verb == "worker":
            self.printed = self.worker
        elif piece.verb == "browse":
            path = "/" + piece.text.split("/", 3)[3]
            self.fork(piece, ["shell", "-v0", "-c", BROWSE.format(path=path, password=PASSWORD)])
        elif piece.verb == "replace":
            path, old, new = piece.text.split()
            before = (self.folder / path).read_text()
            assert before.count(old) == 1, f"{piece}\n{before}"
            (self.folder / path).write_text(before.replace(old, new))
        elif piece.verb == "picture":
            pass  # tutorial_picture.py takes it
        elif piece.verb == "first_job":
            self.first_job_seconds = time.monotonic() - self.began
        else:
            self.next = (piece.verb, piece.text)

    def run(self, piece):
        # Packages are there already; a machine without a network can do the rest.
        lines = [line for line in piece.text.splitlines() if "pip install" not in line and "venv" not in line]
        self.began = self.began or time.monotonic()
        commands = [shlex.split(line) for line in lines]
        # The first job is timed as a reader would see it, by commands that are started as a shell does it.
        if self.first_job_seconds and all(words[:2] == ["python", "manage.py"] for words in commands):
            for words in commands:
                self.fork(piece, [*words[2:], *(["--noinput"] if words[2] == "createsuperuser" else [])])
            return
        command = ["bash", "-ec", "\n".join(lines)]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=patient())
        self.printed = Output(lambda: done.stdout + done.stderr)
        assert done.returncode == 0 or self.may_fail, f"{piece}\n{done.stdout}{done.stderr}"

    def fork(self, piece, arguments):
        """Run manage.py in a fork of a process that has imported Django."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        status = Forked(arguments, self.env, log, folder=self.folder).wait(patient())
        text = log.read_text()
        self.printed = Output(lambda: text)
        assert status == 0 or self.may_fail, f"{piece}\n{text}"

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
        self.printed = self.worker = Output(log.read_text, goes_on=True)

    def end(self):
        for process in self.background:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.background.clear()
