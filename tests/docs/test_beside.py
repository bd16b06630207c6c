"""The migration guides' code for other queues runs where those are installed."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, ROOT, name, pieces
from tests.settings import VENDOR

PYTHON = Path(os.environ.get("JOBQUEUE_TEST_BENCH_PYTHON", ROOT / ".venv-bench" / "bin" / "python"))
GUIDES = [page for page in PAGES if any(piece.verb == "beside" for piece in pieces(page))]


def blocks(page):
    """The other queue's name, and (module, place, code) of every block."""
    found, mark = [], None
    for piece in pieces(page):
        if piece.verb == "beside":
            head, _, code = piece.text.partition("\n")
            mark = head.split()
            if code:
                found.append((mark[1] if mark[1:] else None, str(piece), code))
                queue, mark = mark[0], None
        elif mark and piece.kind == "python":
            found.append((mark[1] if mark[1:] else None, str(piece), piece.text))
            queue, mark = mark[0], None
    return queue, found


def test_every_queue_that_people_come_from_has_a_guide():
    assert {blocks(page)[0] for page in GUIDES} == {"django-tasks-db", "django-q2", "celery", "huey"}


@pytest.mark.skipif(VENDOR != "sqlite", reason="once is enough")
@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-bench: `sh scripts/bench.sh --peers` makes it")
@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_the_other_queues_code_runs(page):
    queue, found = blocks(page)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("JOBQUEUE_", "DJANGO_"))}
    done = subprocess.run(
        [str(PYTHON), "-m", "tests.docs.beside", queue],
        input=json.dumps(found),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
