"""What a worker does with code that cannot be imported, and with code that has changed while it works."""

import signal

import pytest

from jobqueue.models import Job
from tests.app import tasks
from tests.factories import job, make_job, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.harness import ROOT

pytestmark = committed


def broken_project(folder, text):
    """Settings of a project that has, beside the tests' app, one with this tasks.py."""
    (folder / "broken").mkdir()
    (folder / "broken" / "__init__.py").touch()
    (folder / "broken" / "tasks.py").write_text(text)
    lines = "from tests.settings_process import *\nINSTALLED_APPS.append('broken')\n"
    (folder / "broken_settings.py").write_text(lines)
    return {"DJANGO_SETTINGS_MODULE": "broken_settings", "PYTHONPATH": f"{ROOT}:{folder}"}


@finding("N4")
@pytest.mark.parametrize("text", ["def (", "import nothing_of_this_name", "raise SystemExit"])
def test_a_worker_whose_tasks_cannot_be_imported_says_so_and_does_not_start(worker, tmp_path, text):
    job_id = make_job("q", task="broken.tasks.work")
    group = worker(**broken_project(tmp_path, text))
    assert group.wait() == 4, group.text()
    assert "the worker does not start: broken.tasks could not be imported" in group.text()
    assert "Traceback" in group.text()
    assert "INSTALLED_APPS" not in group.text()
    assert (job(job_id).status, job(job_id).wait_reason) == (Job.Status.READY, None)


@finding("N4")
def test_a_process_that_starts_later_than_its_worker_with_broken_code_claims_nothing_until_it_is_correct(
    worker, tmp_path, evidence
):
    environment = broken_project(tmp_path, "")
    group = worker("--processes", 1, **environment)
    group.prints("waiting for jobs")
    (tmp_path / "broken" / "tasks.py").write_text("def (")
    group.signal(signal.SIGHUP)
    group.prints("this process ends and is started again: broken.tasks could not be imported")
    after = tasks.add.enqueue(1, 1).id
    (tmp_path / "broken" / "tasks.py").write_text("")
    wait_until(lambda: state(after) == "DONE", what="the end of the job")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


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
