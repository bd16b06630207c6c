"""--reload: changed code is loaded by the same supervisor, and no job is hurt by it."""

import signal

from tests.app import tasks
from tests.factories import job, state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.harness import ROOT

pytestmark = committed


def test_changed_code_is_loaded_when_what_runs_has_ended(start, tmp_path, evidence):
    settings, gate = tmp_path / "fresh_settings.py", tmp_path / "gate"
    settings.write_text("from tests.settings_process import *\n")
    group = start("runworker", "--reload", DJANGO_SETTINGS_MODULE=settings.stem, PYTHONPATH=f"{ROOT}:{tmp_path}")
    running = tasks.gated.enqueue(str(gate)).id
    wait_until(lambda: evidence.read("start"), what="the start of a job")
    settings.write_text("from tests.settings_process import *\nJOBQUEUE['WORKER_SILENT_SECONDS'] = 6\n")
    gate.touch()
    group.prints("code has changed")
    after = tasks.add.enqueue(1, 1).id
    wait_until(lambda: (state(running), state(after)) == ("DONE", "DONE"), what="the end of both jobs")
    assert (job(running).attempts, len(evidence.read("start"))) == (0, 1)
    assert evidence.read("start")[0][1] != evidence.read("effect")[-1][1]
    assert group.process.poll() is None
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
