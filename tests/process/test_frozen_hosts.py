"""A host that is paused within a transaction keeps nobody from working, whatever it has locked."""

import json
import time

import pytest

from tests.app import tasks
from tests.factories import state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.party import ENVIRONMENT, Party
from tests.settings import FULL, VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks the whole database, not a row")]
#: what the short run looks at: words of a statement
SOME = ["job_gate ", "UPDATE job_queue", "job_schedule "]


class Walk:
    """One round for each kind of statement: a worker that freezes there, another one, and two parties."""

    def __init__(self, worker, tmp_path):
        self.worker, self.path, self.rounds = worker, tmp_path, 0

    def start(self, names, folder=None):
        """A worker whose queues of these names have a limit of their own."""
        queues = json.dumps({name: {"CONCURRENCY": 50, "RATE": "1000/s"} for name in names})
        environment = ENVIRONMENT | {"JOBQUEUE_TEST_QUEUES": queues}
        if folder is not None:
            environment["JOBQUEUE_TEST_FREEZE"] = str(folder)
        return self.worker("--lease", "3s", "--concurrency", 4, **environment)

    def seen(self):
        """All kinds of statements that a worker sends in transactions for a party."""
        folder = self.path / "seen"
        folder.mkdir()
        group = self.start(["before"], folder)
        party = Party("before")
        for _ in range(3):
            party.ends()
            party.add()
        party.ends()
        group.end()
        return sorted({*(folder / "seen").read_text().splitlines()})

    def round(self, kind):
        """Whether the worker came to a statement of this kind; then everything goes on without it."""
        self.rounds += 1
        folder = self.path / str(self.rounds)
        folder.mkdir()
        (folder / "wanted").write_text(kind)
        names = [f"{name}-{self.rounds}" for name in ("one", "two")]
        frozen = self.start(names, folder)
        one = Party(names[0])
        is_frozen = (folder / "frozen").exists
        for _ in range(3):
            wait_until(lambda: is_frozen() or not one.left(), what="a freeze, or the end of the party")
            if is_frozen():
                break
            one.add()
        if reached := is_frozen():
            healthy = self.start(names)
            two = Party(names[1])
            two.ends()
            one.ends()
            healthy.end()
        frozen.end()
        return reached


@finding("F1")
def test_a_queue_with_a_limit_whose_claim_is_frozen_is_served_by_another_host(worker, tmp_path):
    (tmp_path / "wanted").write_text("MainThread: UPDATE job_queue")
    environment = {"JOBQUEUE_TEST_QUEUES": '{"q": {"CONCURRENCY": 5}}'}
    job = tasks.add.using(queue_name="q").enqueue(1, 2)
    worker("--concurrency", 1, JOBQUEUE_TEST_FREEZE=str(tmp_path), **environment)
    wait_until((tmp_path / "frozen").exists, what="the freeze")
    frozen_at = time.monotonic()
    worker("--concurrency", 1, **environment)
    wait_until(lambda: state(job.id) == "DONE", what="the end of the job")
    print(f"it has ended {time.monotonic() - frozen_at:.1f} s after the freeze")


def test_others_go_on_beside_a_host_that_is_frozen_behind_a_statement_of_a_transaction(worker, tmp_path):
    walk = Walk(worker, tmp_path)
    kinds = walk.seen()
    if not FULL:
        kinds = [next(kind for kind in kinds if words in kind) for words in SOME]
    reached = [kind for kind in kinds if walk.round(kind)]
    print(f"frozen behind {len(reached)} of {len(kinds)} kinds of statements")
    assert len(reached) > len(kinds) / 2
