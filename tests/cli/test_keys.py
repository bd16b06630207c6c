"""manage.py jobs keys: hot keys, keys that are held up, and resume."""

import json
from io import StringIO

import pytest
from django.core.management import call_command

from jobqueue import enqueue, enqueue_many
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering.lanes import hot_keys, stuck_keys
from jobqueue.transitions import ack, claim, fail, retry
from tests.cli.helpers import refused
from tests.factories import claim_one, set_columns
from tests.marks import finding

pytestmark = pytest.mark.django_db


def run(*words):
    out = StringIO()
    call_command("jobs", "keys", *words, stdout=out)
    return out.getvalue()


def kill_head(queue="q"):
    lease = claim_one(queue)
    set_columns(lease.job_id, max_attempts=1)
    fail(lease, error="boom", retry=False)
    return lease.job_id


def test_without_keys_there_is_nothing_to_tell():
    enqueue("q", 1)
    assert run() == "0 ordering keys have jobs\n"


def test_the_key_with_the_most_jobs_comes_first():
    (cold,) = enqueue_many("q", range(1), ordering_key="cold")
    hot, *_ = enqueue_many("q", range(5), ordering_key="hot")
    claim("q", 1, worker="w")
    assert run().splitlines() == [
        f"5  q  hot  ready  first #{hot}",
        f"1  q  cold  running  first #{cold}",
        "2 ordering keys have jobs",
    ]
    assert run("--limit", "1").splitlines()[-1] == "there may be more; pass a larger --limit"


def test_what_the_first_job_does_is_told():
    (later,) = enqueue_many("q", range(1), ordering_key="later")
    set_columns(later, run_at=UtcNowPlus(3600))
    enqueue("q", 1, ordering_key="dead")
    kill_head()
    states = {key.ordering_key: key.state for key in hot_keys(using="default")}
    assert states == {b"later": "scheduled", b"dead": "failed"}


@finding("O-M12")
def test_a_first_job_that_waits_for_a_person_is_not_called_ready():
    (head,) = enqueue_many("q", range(1), ordering_key="crashed")
    set_columns(head, gate=HELD_GATE)
    assert [key.state for key in hot_keys(using="default")] == ["held"]


def test_only_keys_that_are_held_up_with_stuck():
    enqueue_many("q", range(2), ordering_key="fine")
    ack(claim_one())
    dead, *_ = enqueue_many("p", range(3), ordering_key="dead")
    kill_head("p")
    assert run("--stuck").splitlines() == [f"3  p  dead  failed  first #{dead}", "1 ordering keys are blocked"]
    assert run("--stuck", "--queue", "q").splitlines() == ["0 ordering keys are blocked"]


def test_a_halted_key_is_held_up_although_its_job_was_retried(settings):
    settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "ON_KEY_FAILURE": "halt"}
    dead, second = enqueue_many("q", range(2), ordering_key="k")
    kill_head()
    retry(dead)
    ack(claim_one())
    (key,) = stuck_keys(using="default")
    assert (key.state, key.first_id, key.jobs) == ("halted", second, 1)


def test_stuck_keys_can_end_with_a_status():
    enqueue("q", 1, ordering_key="k")
    kill_head()
    with pytest.raises(SystemExit) as ended:
        run("--stuck", "--fail-if-any")
    assert ended.value.code == 5


def test_json_has_stable_names():
    enqueue("q", 1, ordering_key=b"k\xff")
    found = json.loads(run("--json"))
    (key,) = found["keys"]
    assert found["version"] == 1
    assert (key["queue"], key["ordering_key"], key["key_hex"]) == ("q", "k\\xff", "6bff")
    assert (key["state"], key["jobs"]) == ("ready", 1)


@pytest.mark.parametrize(("key", "word"), [("k", "k"), (b"k\xff", "hex:6bff"), ("열쇠", "열쇠")])
def test_resume_lets_a_key_go_on(key, word):
    _dead, second = enqueue_many("q", range(2), ordering_key=key)
    kill_head()
    assert run("resume", "q", word).endswith("of queue q is resumed\n")
    assert claim_one().job_id == second


def test_resume_of_a_key_that_goes_on_anyway_says_so():
    with pytest.raises(SystemExit) as ended:
        run("resume", "q", "k")
    assert ended.value.code == 5


@pytest.mark.parametrize("words", ["resume", "resume q", "pause q k", "resume q hex:zz", "resume q: k"])
def test_wrong_words_are_refused(capsys, words):
    assert "Nothing was" in refused(capsys, "jobs", "keys", *words.split())
