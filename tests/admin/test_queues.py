"""The admin page of queues: what is set for them, how many of their jobs wait and run."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.html import strip_tags

from jobqueue import enqueue_many
from jobqueue.admin.queues import queue_admin as queues
from jobqueue.admin.queues import rows as queue_rows
from jobqueue.db.clock import UtcNowPlus
from jobqueue.flow import drain, pause, set_limit
from jobqueue.flow.overview import COUNT_MAX, queue_states
from jobqueue.maintenance.worker_rows import register
from jobqueue.models import FlowRule, Worker
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.transitions import claim
from tests.admin.helpers import HOSTILE, LIMIT_STATEMENTS, SCRIPT, Inline, client_of, person, root, text_of
from tests.app import tasks
from tests.factories import make_in_state, make_job, set_columns
from tests.marks import finding

pytestmark = pytest.mark.django_db

QUEUES = "/admin/jobqueue/flowrule/"
PAGE = f"{QUEUES}queue/"
TASK = tasks.add.module_path


def rows_of(page):
    """The text of each cell, by the first cell."""
    table = (
        page.partition("jobqueue-cards jobqueue-flow")[2]
        .partition("</table>")[0]
        .partition('<tbody role="rowgroup">')[2]
    )
    rows = [row.replace("</th>", "</td>").split("</td>") for row in table.split("</tr>")[:-1]]
    texts = [[plain(cell) for cell in row[:-1]] for row in rows]
    return {name: cells for name, *cells in texts}


def plain(markup):
    """The text of a cell, with its parts parted by slashes."""
    for end in ("</span>", "<div", "</div>"):
        markup = markup.replace(end, f" / {end}")
    return " / ".join(filter(None, (part.strip() for part in strip_tags(markup).split("/ "))))


def test_the_page_shows_what_is_set_and_how_many_jobs_wait_and_run(settings):
    settings.JOBQUEUE = {"QUEUES": {"web": {"CONCURRENCY": (2, 8), "RATE": "10/s", "MAX_READY": 5}}}
    enqueue_many("mail", range(3))
    claim("mail", 1, worker="w")
    pause("mail", reason="the provider is down", by="ann")
    drain("old", reason="it goes")
    set_limit("mail", task=tasks.add, concurrency=3)
    page = text_of(root().get(QUEUES))
    rows = rows_of(page)
    assert list(rows) == ["mail", TASK, "old", "web"]
    state, *counts = rows["mail"]
    assert state.startswith("paused / the provider is down / by ann")
    ready, oldest, *others = counts
    assert (ready, bool(oldest), others) == ("2", True, ["0", "0", "1", "0", "-", "-"])
    assert rows[TASK] == ["running", *[""] * 6, "3 / set by hand", "-"]
    assert rows["old"][0].startswith("draining / it goes")
    assert page.count('<span class="jobqueue-state jobqueue-expired">') == 2, "paused and draining look the same"
    assert '<td role="cell" data-title="Concurrency">' in page
    assert rows["web"] == ["running", "0 / of at most 5", "", "0", "0", "0", "0", "2 to 8, now 2", "10/s"]
    assert not Inline(page).found


@finding("O-M12")
def test_each_count_leads_to_as_many_jobs_for_those_who_may_see_them():
    set_columns(make_job("mail"), run_at=UtcNowPlus(600))
    set_columns(make_job("mail"), gate=PARENTS_GATE)
    set_columns(make_job("mail"), gate=HELD_GATE)
    make_in_state("FAILED", "mail")
    client = root()
    page = text_of(client.get(QUEUES))
    state, *cells = rows_of(page)["mail"]
    assert (state, cells[:6]) == ("running", ["0", "", "2", "1", "0", "1"])
    for name, count in (("scheduled", 2), ("held", 1), ("failed", 1)):
        address = f"/admin/jobqueue/job/?queue=mail&amp;state={name}"
        assert f'<a href="{address}">{count}</a>' in page
        assert f">{count} job{'s' * (count > 1)}</p>" in text_of(client.get(address.replace("&amp;", "&")))
    assert "state=held" not in text_of(client_of(person("view_flowrule")).get(QUEUES))


@pytest.mark.parametrize("limit", [{"concurrency": 0}, {"rate": 0}])
def test_a_queue_with_a_limit_of_0_is_called_paused(limit):
    set_limit("mail", **limit)
    assert rows_of(text_of(root().get(QUEUES)))["mail"][0] == "paused / its limit is 0"


def test_a_limit_that_a_worker_does_not_know_is_called_partial():
    register("old", supervisor_pid=1, boot_id="b", queues="*", concurrency=1, using="default")
    Worker.objects.update(gates=None)
    set_limit("mail", concurrency=2)
    client = root()
    assert "partial: 1 worker does not know it" in text_of(client.get(QUEUES))
    assert "partial: 1 worker does not know it" in text_of(client.get(PAGE, {"queue": "mail"}))


def test_without_queues_the_page_says_so():
    page = text_of(root().get(QUEUES))
    assert "There is no queue yet." in page
    assert "jobqueue-search" not in page


def test_queues_are_found_by_a_part_of_their_name():
    for name in ("mail", "mail-slow", "web"):
        make_job(name)
    client = root()
    assert list(rows_of(text_of(client.get(QUEUES, {"q": " MAIL "})))) == ["mail", "mail-slow"]
    assert "No queue has such a name." in text_of(client.get(QUEUES, {"q": "x"}))


def test_many_queues_are_shown_in_pages(monkeypatch):
    monkeypatch.setattr(queues, "QUEUES_SHOWN", 2)
    for name in "abcde":
        make_job(name)
    client = root()
    first = text_of(client.get(QUEUES))
    assert list(rows_of(first)) == ["a", "b"]
    assert "Page 1 of 3" in first
    assert list(rows_of(text_of(client.get(QUEUES, {"p": 3})))) == ["e"]
    for odd in ("x", "-1", "99999", "\x00"):
        assert text_of(client.get(QUEUES, {"p": odd, "q": odd}))


def test_a_count_stops_and_says_so(monkeypatch):
    monkeypatch.setattr(queue_rows, "COUNT_MAX", 3)
    enqueue_many("mail", range(5))
    client = root()
    page = text_of(client.get(QUEUES))
    assert rows_of(page)["mail"][1] == "3+"
    assert "Counts stop at 3." in page
    # Its own page counts more of them.
    assert "5" in text_of(client.get(f"{QUEUES}queue/", {"queue": "mail"}))
    assert COUNT_MAX == 10_000


def statements(client, path, data=None):
    """The statements of the second request: the first one fills caches."""
    client.get(path, data)
    with CaptureQueriesContext(connection) as captured:
        text_of(client.get(path, data))
    return [query["sql"] for query in captured]


def test_the_page_costs_no_more_statements_than_the_counts_of_the_queues_that_it_shows():
    client, beside = root(), []
    for names in (["a", "b"], [f"queue-{number}" for number in range(20)]):
        for name in names:
            make_job(name)
            pause(name, reason="r")
            set_limit(name, task=tasks.add, concurrency=2)
        with CaptureQueriesContext(connection) as captured:
            queue_states(using="default")
        # Before the next request, which empties the log of statements.
        own = len(captured)
        beside.append(len(statements(client, QUEUES)) - own)
    assert beside[0] == beside[1] <= 6 + LIMIT_STATEMENTS


def test_nothing_is_counted_without_a_limit_and_no_payload_is_read():
    enqueue_many("mail", range(5))
    found = [sql for sql in statements(root(), QUEUES) if "job_queue" in sql]
    assert found
    assert not [sql for sql in found if "payload" in sql or "LIMIT" not in sql.upper()]


def test_the_page_of_a_queue_costs_the_same_for_ten_tasks():
    client, counts = root(), []
    for paths in ([tasks.add], [tasks.greet, tasks.counts, tasks.ordered, tasks.keyed, tasks.boom]):
        for task in paths:
            pause("mail", task=task, reason="r")
        counts.append(len(statements(client, PAGE, {"queue": "mail"})))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_reasons_are_shown_as_text(text):
    job_id = make_job("q")
    set_columns(job_id, queue=text)
    FlowRule.objects.create(queue=text, mode="paused", reason=text, by=text)
    FlowRule.objects.create(queue=text, task=text, mode="paused", reason=text, by=text)
    FlowRule.objects.create(queue="q", task=text, mode="paused", reason=text, by=text)
    client = root()
    for page in (
        text_of(client.get(QUEUES)),
        text_of(client.get(QUEUES, {"q": text})),
        text_of(client.get(PAGE, {"queue": "q"})),
        text_of(client.get(PAGE, {"queue": "q", "task": text})),
        text_of(client.get(PAGE, {"queue": text, "task": text}, follow=True)),
        text_of(client.get(PAGE, {"queue": "q", "task": f"{text}?"}, follow=True)),
    ):
        assert SCRIPT not in page
        assert not Inline(page).found
        assert [tag for tag, attrs in Inline(page).tags if tag == "img" and attrs.get("src") == "x"] == []


@pytest.mark.parametrize("name", ["", "\x00", "a,b", "-x", "x" * 65, "a\nb"])
def test_a_name_that_no_queue_can_have_leads_back_to_the_list_with_a_sentence(name):
    response = root().get(PAGE, {"queue": name}, follow=True)
    assert response.redirect_chain == [(QUEUES, 302)]
    assert "Nothing was written" in text_of(response)


def test_a_queue_that_only_plain_sql_could_name_is_listed_without_a_link():
    set_columns(make_job("q"), queue="a:b")
    page = text_of(root().get(QUEUES))
    assert "a:b" in page
    assert f"{PAGE}?queue=a%3Ab" not in page
    # The list of its jobs takes any name.
    assert "/job/?queue=a%3Ab&amp;state=ready" in page


def test_the_page_of_a_queue_lists_its_tasks_and_links_its_jobs():
    pause("mail", task=tasks.add, reason="r")
    page = text_of(root().get(PAGE, {"queue": "mail"}))
    assert f'href="{PAGE}?queue=mail&amp;task={TASK}"' in page
    assert 'href="/admin/jobqueue/job/?queue=mail"' in page
    assert (
        "/admin/jobqueue/job/"
        not in text_of(client_of(person("view_flowrule")).get(PAGE, {"queue": "mail"}))
        .partition("jobqueue-facts")[2]
        .partition("<form")[0]
    )


def test_an_address_of_a_row_leads_to_the_page_of_its_queue_and_its_history_names_it():
    pause("mail", task=tasks.add, reason="r")
    row, client = FlowRule.objects.get(), root()
    response = client.get(f"{QUEUES}{row.pk}/change/")
    assert (response.status_code, response["Location"]) == (302, f"{PAGE}?queue=mail&task={TASK}")
    assert f"{TASK} in queue mail" in text_of(client.get(f"{QUEUES}{row.pk}/history/"))
    assert client.get(f"{QUEUES}12345/change/", follow=True).status_code == 200
    assert client.get(f"{QUEUES}x/change/", follow=True).status_code == 200


@pytest.mark.parametrize("path", ["add/", "{}/delete/"])
def test_no_row_can_be_added_or_deleted(path):
    pause("mail", reason="r")
    client = root()
    for method in (client.get, client.post):
        assert method(QUEUES + path.format(FlowRule.objects.get().pk), {"post": "yes"}).status_code == 403
    assert FlowRule.objects.count() == 1
