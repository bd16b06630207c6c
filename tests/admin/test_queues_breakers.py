"""Circuit breakers on the page of queues, and their own page: open with a reason, close."""

import pytest
from django.contrib.admin.models import LogEntry

from jobqueue import flow, task
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import BreakerState
from tests.admin.helpers import HOSTILE, SCRIPT, Inline, client_of, person, root, text_of
from tests.admin.test_queues import QUEUES, statements
from tests.memories import know_no_tasks

pytestmark = pytest.mark.django_db

PAGE = f"{QUEUES}breaker/"
STRIPE = f"{PAGE}?dependency=stripe"
SEES = ("view_flowrule", "view_breakerstate")


def work(): ...


def post(client, verb, page=STRIPE, **data):
    return client.post(page, {"verb": verb, **data}, follow=True)


def told(response):
    return [str(message) for message in response.context["messages"]]


def history():
    return [(one.object_id, one.get_change_message(), one.user.username) for one in LogEntry.objects.order_by("pk")]


def test_without_dependencies_the_page_says_so(own_registry, monkeypatch):
    know_no_tasks(monkeypatch)
    assert "No task names a dependency, and no setting does." in text_of(root().get(QUEUES))


def test_breakers_of_tasks_settings_and_the_table_are_listed_those_that_are_not_closed_first(settings, own_registry):
    settings.JOBQUEUE = {"DEPENDENCIES": {"geo": {}}}

    task(dependency="smtp")(work)
    flow.breaker("stripe").open("an outage")
    page = text_of(root().get(QUEUES)).partition("jobqueue-breakers")[2]
    assert page.index("stripe") < page.index("geo") < page.index("smtp")
    assert "an outage" in page
    assert "open until somebody closes it" in page
    assert not Inline(page).found


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"state": "open", "by_hand": True, "until": UtcNowPlus(600)}, "closes in 10m 0s"),
        ({"state": "open", "probe_at": UtcNowPlus(600)}, "next probe in 10m 0s"),
        ({"state": "open", "probe_at": UtcNow()}, "the next job is a probe"),
        ({"state": "half-open", "probe_job": 1, "probe_fence": 1}, "a probe is running"),
        ({"state": "closed", "failures": 2}, "2 failures lately"),
        ({"state": "open", "by_hand": True, "until": UtcNowPlus(-1)}, ">closed<"),
    ],
)
def test_what_happens_next_is_told(columns, words):
    BreakerState.objects.create(dependency="stripe", reason="r", since=UtcNowPlus(-1), **columns)
    client = root()
    for path in (QUEUES, STRIPE):
        page = text_of(client.get(path)).replace("9m 59s", "10m 0s")
        assert words in page, path


def test_open_needs_a_reason_stops_its_jobs_and_is_recorded():
    client = root()
    assert "This field is required." in text_of(post(client, "open", reason=" "))
    assert flow.breaker("stripe").state == "closed"
    response = post(client, "open", reason="an outage")
    assert told(response) == ["The circuit breaker of stripe is open: its jobs wait, and jobs that run go on."]
    assert flow.breaker("stripe").state == "open"
    assert history() == [("stripe", "open: an outage", "root")]
    assert "open: an outage" in text_of(client.get(STRIPE))


def test_it_is_opened_until_a_time():
    (said,) = told(post(root(), "open", reason="r", until="2h"))
    assert "It closes by itself at " in said
    assert BreakerState.objects.get().until is not None


def test_close_starts_its_jobs_again_and_a_second_one_changes_nothing():
    flow.breaker("stripe").open("r")
    client = root()
    assert "Close the breaker" in text_of(client.get(STRIPE))
    assert told(post(client, "close")) == ["The circuit breaker of stripe is closed: its jobs start again."]
    assert flow.breaker("stripe").state == "closed"
    assert "was closed already" in told(post(client, "close"))[0]
    assert history() == [("stripe", "close", "root")]
    assert "Close the breaker" not in text_of(client.get(STRIPE))


@pytest.mark.parametrize("verb", ["open", "close"])
@pytest.mark.parametrize(
    "granted", [SEES, ("pause_queue", SEES[0]), ("pause_queue", SEES[1]), (*SEES, "change_limits"), ()]
)
def test_verbs_need_pause_queue_and_the_permissions_to_see(verb, granted):
    flow.breaker("stripe").open("r")
    before, client = list(BreakerState.objects.values()), client_of(person(*granted))
    assert post(client, verb, reason="x").status_code == 403
    assert list(BreakerState.objects.values()) == before
    assert f'value="{verb}"' not in client.get(STRIPE).content.decode()
    assert not LogEntry.objects.exists()


def test_pause_queue_gives_both_verbs():
    client = client_of(person(*SEES, "pause_queue"))
    assert post(client, "open", reason="r").status_code == 200
    assert post(client, "close").status_code == 200
    assert [what for _, what, _ in history()] == ["open: r", "close"]


def test_breakers_are_listed_for_those_who_may_see_them():
    flow.breaker("stripe").open("r")
    client = client_of(person("view_flowrule"))
    assert "stripe" not in text_of(client.get(QUEUES))
    assert client.get(STRIPE).status_code == 403
    assert client_of(None).get(STRIPE).status_code == 302


def test_a_get_and_an_unknown_verb_change_nothing():
    client = root()
    client.get(STRIPE, {"dependency": "stripe", "verb": "open", "reason": "r"})
    assert client.post(STRIPE, {"verb": "half-open", "reason": "r"}).status_code == 400
    assert flow.breaker("stripe").state == "closed"


@pytest.mark.parametrize("name", ["", "a b", "\x00", "x" * 65])
def test_a_name_that_no_dependency_can_have_leads_back_to_the_list(name):
    response = root().get(PAGE, {"dependency": name}, follow=True)
    assert response.redirect_chain == [(QUEUES, 302)]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_reasons_are_shown_as_text(text):
    BreakerState.objects.create(dependency=text, state="open", reason=text, since=UtcNow())
    client = root()
    for page in (text_of(client.get(QUEUES)), text_of(client.get(PAGE, {"dependency": text}, follow=True))):
        assert SCRIPT not in page
        assert not Inline(page).found
        assert [tag for tag, attrs in Inline(page).tags if tag == "img" and attrs.get("src") == "x"] == []


def test_a_database_that_refuses_the_write_is_no_error_page(monkeypatch):
    def refuse(*args, **kwargs):
        raise DatabaseBusy("busy")

    for name in ("open", "close"):
        monkeypatch.setattr(flow.Breaker, name, refuse)
        assert "Nothing was changed; try again later." in text_of(
            post(client_of(person(*SEES, "pause_queue", name=name)), name, reason="r")
        )
    assert not LogEntry.objects.exists()


def test_the_page_costs_the_same_for_many_breakers():
    client, counts = root(), []
    for number in range(30):
        flow.breaker(f"service-{number}").open("r")
        if number in (1, 29):
            counts.append(len(statements(client, QUEUES)))
    assert counts[0] == counts[1]
