"""What a job waits for is put into the same words everywhere, in the active language."""

import json
from datetime import timedelta

import pytest
from django.utils import translation

from jobqueue import enqueue
from jobqueue.explain import explain_backlog
from jobqueue.explain.explanation import reason_in_words
from jobqueue.flow import breaker, drain, pause
from jobqueue.gates.kinds import KINDS
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models.job import ALONE_REASON, HELD_GATE, HELD_REASON, QUARANTINED
from jobqueue.ordering import HALTED, KEY_GATE, SCHEDULED, WAITS
from tests.admin.helpers import JOBS, job_page, text_of, viewer
from tests.cli.test_dead_letters import run
from tests.explain.helpers import checked, of_job, of_queue
from tests.factories import claim_one, make_in_state, make_job, now, set_columns
from tests.gates import jobs
from tests.gates.helpers import add, taken

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)

GATED = {
    "paused shop.tasks.pay": "task shop.tasks.pay is paused",
    "slot shop.tasks.pay": "all slots of task shop.tasks.pay are taken",
    "key order 5": "all slots of the concurrency key order 5 are taken",
    "rate shop.tasks.pay": "the rate limit of shop.tasks.pay is used up for the moment",
    "breaker stripe": "the circuit breaker of stripe is not closed",
    "of a later release": "of a later release",
}


@pytest.mark.parametrize(("reason", "words"), GATED.items())
def test_the_code_of_a_gate_and_its_subject_become_a_phrase(reason, words):
    assert reason_in_words(reason, FLOW_GATE) == words


def test_each_kind_of_limit_has_a_phrase_for_each_of_its_codes():
    codes = [code for kind in KINDS for code in kind.codes]
    assert sorted(codes) == sorted({reason.split()[0] for reason in GATED} - {"of"})


@pytest.mark.parametrize(
    "reason", ["rate limit of the partner", "key error", "retry 2 of 25 after x", "snoozed", SCHEDULED]
)
def test_a_reason_that_is_no_gate_stays_as_it_is(reason):
    assert reason_in_words(reason, 0) == reason


@pytest.mark.parametrize("reason", [None, ""])
def test_without_a_reason_there_are_no_words(reason):
    assert reason_in_words(reason, 0) == ""


@pytest.mark.parametrize(
    ("reason", "gate"),
    [(WAITS, KEY_GATE), (HALTED, KEY_GATE), (HELD_REASON, HELD_GATE), (ALONE_REASON, HELD_GATE), (QUARANTINED, 0)],
)
def test_reasons_that_the_package_writes_are_translated(reason, gate):
    assert reason_in_words(reason, gate).startswith(reason)
    with translation.override("ko"):
        assert reason_in_words(reason, gate) != reason_in_words(reason, gate).encode("ascii", "ignore").decode()


def test_all_texts_and_steps_are_korean_in_korean(limited, settings):
    settings.JOBQUEUE = {"DEPENDENCIES": {"stripe": {}}}
    ids = add(2, limited(concurrency_limit=1, rate_limit="1/h"))
    taken()
    more = [
        *(make_in_state(name) for name in ("DONE", "FAILED", "CANCELED")),
        make_in_state("PROCESSING", "other"),
        enqueue("q", 1, run_at=now() + HOUR),
        make_job(dependency="stripe"),
        *(enqueue("keys", n, ordering_key="k") for n in range(2)),
    ]
    breaker("stripe").open("x")
    pause("keys", reason="x")
    drain("other", reason="x")
    with translation.override("ko"):
        found = [one for job_id in [*ids, *more] for one in of_job(job_id)]
        found += [one for queue in ("q", "keys", "other", "empty") for one in of_queue(queue)]
        found += checked(explain_backlog())
    assert {one.code for one in found} >= {
        "slot", "ended", "running", "not_due", "breaker", "key", "paused", "draining", "no_worker", "unknown_task"
    }  # fmt: skip
    for one in found:
        assert any("가" <= letter <= "힣" for letter in one.text), one
        assert any("가" <= letter <= "힣" for letter in one.next_step), one


class TestThePageOfAJob:
    def next(self, job_id, client):
        return text_of(client.get(job_page(job_id)))

    def test_says_who_has_paused_its_queue(self):
        job_id, client = make_job(), viewer()
        pause("q", reason="the mail server moves", by="ann")
        page = self.next(job_id, client)
        assert "Queue q has been paused for" in page
        assert "the mail server moves" in page
        assert "Ask ann, who has paused it" in page

    def test_says_which_jobs_have_the_slots(self, limited):
        ids, client = add(2, limited(concurrency_limit=1)), viewer()
        taken()
        page = self.next(ids[1], client)
        assert f"All slots of task {jobs.WORK} in queue q are taken: 1 of 1, by {ids[0]}." in page
        assert f'title="slot {jobs.WORK}">all slots of task {jobs.WORK} are taken<' in page

    def test_says_which_job_is_in_front(self, worker):
        worker()
        (one, two), client = [enqueue("q", n, ordering_key="k") for n in range(2)], viewer()
        claim_one()
        assert f"Job {one} is running in w." in self.next(two, client)

    def test_says_that_no_worker_serves_its_queue(self, worker):
        worker(queues="mail")
        assert "No worker that runs serves queue q." in self.next(make_job(), viewer())

    def test_says_of_a_due_job_that_the_next_free_worker_starts_it(self, worker):
        worker()
        assert "The next free worker of queue q starts it." in self.next(make_job(), viewer())

    def test_shows_names_of_others_as_text(self):
        job_id = make_job(task="<script>alert(1)</script>", dependency="<img/src=x>")
        breaker("<img/src=x>").open("<b>\u202e")
        client = viewer()
        page = self.next(job_id, client)
        assert "<script>alert" not in page
        assert "<img/src=x" not in page
        assert "\u202e" not in page
        set_columns(job_id, gate=FLOW_GATE, wait_reason="breaker <img/src=x>")
        assert "<img/src=x" not in self.next(job_id, client)


def test_the_list_shows_the_words_below_the_task(limited):
    add(2, limited(concurrency_limit=1))
    taken()
    assert "all slots of task" in text_of(viewer().get(JOBS))


def test_jobs_show_prints_the_words_behind_the_code(limited):
    ids = add(2, limited(concurrency_limit=1))
    taken()
    said = run("show", ids[1])[1]
    assert f"wait_reason: slot {jobs.WORK} (all slots of task {jobs.WORK} are taken)\n" in said
    assert json.loads(run("show", ids[1], "--json")[1])["job"]["wait_reason"] == f"slot {jobs.WORK}"
    made = enqueue("q", 1, run_at=now() + HOUR)
    assert "wait_reason: scheduled\n" in run("show", made)[1]
