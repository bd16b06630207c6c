"""What a process that a job has forked finds of its worker."""

import os
import subprocess
import sys

import pytest

from tests.launch import ROOT
from tests.patience import patient

FORKS_UNDER_ITS_LIMIT = """
import django, os, signal, threading
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
from jobqueue.worker.run import job_fork
from jobqueue.worker.shared.scoreboard import LeaseSlot
from jobqueue.worker.run.timeouts import Limits, Watch

job_fork.guard()
watch, held = Watch(), threading.Event()

def enforce_slowly():
    with watch._lock:
        held.set()
        threading.Event().wait()

threading.Thread(target=enforce_slowly, daemon=True).start()
held.wait()
signal.alarm(20)
with watch.limited(Limits(600, None), LeaseSlot()):
    pid = os.fork()
    if pid:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    signal.alarm(5)
os._exit(42)
"""

# Nobody reads the pipe before the fork is made: the writer stays inside the stream.
FORKS_BESIDE_A_WRITER = """
import fcntl, logging, os, select, signal, sys, threading
from django.conf import settings
settings.configure()
from jobqueue.worker.run import job_fork

job_fork.guard()
reader, writer = os.pipe()
{stream}
text = "x" * (2 * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))
threading.Thread(target=stream.write, args=[text], daemon=True).start()
while select.select([], [writer], [], 0)[1]:
    pass
pid = os.fork()
if not pid:
    signal.alarm({seconds})
    {says}
    job_fork.leave(None)
os.set_blocking(reader, False)
got, ended = b"", False
while not ended or select.select([reader], [], [], 0)[0]:
    ended = ended or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    if select.select([reader], [], [], 0.01)[0]:
        got += os.read(reader, 65536)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the fork hung"
os._exit(42 if b"said by the fork" in got else 1)
"""


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ("os.dup2(writer, 1); stream = sys.stdout", "print('said by the fork')"),
        ("os.dup2(writer, 2); stream = sys.stderr", "logging.error('said by the fork')"),
        (
            "handler = logging.FileHandler(f'/proc/self/fd/{writer}'); stream = handler.stream; "
            "logging.getLogger('app').addHandler(handler)",
            "logging.getLogger('app').error('said by the fork')",
        ),
    ],
    ids=["stdout", "stderr", "log file"],
)
def test_a_fork_made_while_another_thread_writes_can_write_too(stream, says):
    program = FORKS_BESIDE_A_WRITER.format(stream=stream, says=says, seconds=int(patient(5)))
    # Unbuffered streams have no lock; what Python 3.12 says of such a fork would wait for the full pipe.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"} | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, check=False, timeout=patient()
    )
    assert done.returncode == 42, done.stderr.decode()[-2000:]


def test_a_fork_made_while_its_limit_is_looked_at_comes_to_its_end():
    done = subprocess.run([sys.executable, "-c", FORKS_UNDER_ITS_LIMIT], cwd=ROOT, check=False, timeout=patient())
    assert done.returncode == 42
