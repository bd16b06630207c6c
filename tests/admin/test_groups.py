"""Groups and workflows in the admin: what is shown, how many statements it takes, and who may do what."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import group, groups, transitions
from jobqueue.admin.groups import members
from jobqueue.models import GroupMember, Job, JobGroup
from tests.admin.helpers import HOSTILE, Inline, act, client_of, person, root, text_of
from tests.app import tasks
from tests.groups.helpers import claimed
from tests.groups.nodes import diamond, job

pytestmark = pytest.mark.django_db
LIST = "/admin/jobqueue/jobgroup/"


def page_of(group_id):
    return f"{LIST}{group_id}/change/"


def made(count=5, name="import", **options):
    with group(name, **options) as found:
        found.add_many(tasks.add, [(number, 1) for number in range(count)])
    return found.id


def looker(*more):
    return client_of(person("view_jobgroup", *more))


def looker_again():
    return client_of(User.objects.get(username="ann"))


def plain_text(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def said(response):
    return [str(message) for message in get_messages(response.wsgi_request)]


def test_the_list_shows_how_far_each_group_has_come():
    made(5)
    leases = claimed(3)
    transitions.ack_many(leases[:2])
    groups_ended = made(0, name="empty")
    page = text_of(looker().get(LIST))
    assert Inline(page).found == []
    words = plain_text(page)
    assert "2 of 5 done" in words
    assert f"#{groups_ended}" in words
    assert "sealed" in words


def test_counts_stop_at_a_cap_and_say_so(monkeypatch):
    monkeypatch.setattr("jobqueue.admin.groups.group_admin.LIST_MAX", 3)
    made(5)
    members._counted.cache_clear()
    assert "0 of 3+ done" in plain_text(text_of(looker().get(LIST)))


def test_the_list_costs_the_same_with_many_members():
    counted = []
    client = root()
    for many in (5, 400):
        for number in range(5):
            made(many, name=f"g{number}")
        client.get(LIST)
        with CaptureQueriesContext(connection) as captured:
            client.get(LIST)
        counted.append(len(captured))
    assert counted[0] <= counted[1] <= counted[0] + 1


def test_the_page_of_a_group_shows_failed_and_waiting_members_with_their_errors():
    number = made(4)
    first, second = claimed(2)
    transitions.fail(first, error=ValueError("no funds"), delay_seconds=0)
    GroupMember.objects.filter(pk=first.job_id).update(state=GroupMember.State.FAILED)
    page = text_of(looker("view_job").get(page_of(number)))
    assert Inline(page).found == []
    words = plain_text(page)
    assert "no funds" in words
    assert f"/admin/jobqueue/job/{second.job_id}/change/" in page
    assert "It ends with its last member." in words


def test_the_page_of_a_workflow_draws_its_nodes():
    number = diamond()
    page = text_of(looker("view_job").get(page_of(number)))
    assert Inline(page).found == []
    assert len(re.findall(r'<a href="/admin/jobqueue/job/\d+/change/"', page)) == 8
    assert page.count('<g class="jobqueue-node jobqueue-node-') == 4
    assert page.count('class="jobqueue-arrow"') == 4
    assert "jobqueue-node-parents" in page
    words = plain_text(page)
    assert "bottom" in words
    assert "waits for its parents" in words
    assert "left, right" in words


def test_a_node_behind_one_that_failed_is_held():
    number = diamond("hold")
    Job.objects.filter(pk=job("top").pk).update(max_attempts=1)
    (lease,) = claimed()
    transitions.fail(lease, error=ValueError("no funds"))
    page = text_of(looker("view_job").get(page_of(number)))
    words = plain_text(page)
    assert page.count('<g class="jobqueue-node jobqueue-node-held"') == 2
    assert page.count('<g class="jobqueue-node jobqueue-node-parents"') == 1
    assert "Nodes behind one that failed are held." in words
    assert "ValueError: no funds" in words


def test_the_page_of_a_large_workflow_counts_the_nodes_of_each_layer(monkeypatch):
    monkeypatch.setattr("jobqueue.admin.groups.workflow.NODES_MAX", 3)
    monkeypatch.setattr("jobqueue.admin.groups.group_admin.NODES_MAX", 3)
    number = diamond()
    page = text_of(looker("view_job").get(page_of(number)))
    assert "<g class=" not in page
    words = plain_text(page)
    assert "More than 3 nodes are not drawn." in words
    rows = [
        row
        for row in re.findall(r'<tr role="row">.*?</tr>', page)
        if 'td role="cell"' in row and 'class="jobqueue-number">' in row
    ]
    assert [re.findall(r"\d+", plain_text(row)) for row in rows] == [
        ["1", "1", "1", "0", "0", "0"],
        ["2", "2", "2", "0", "0", "0"],
        ["3", "1", "1", "0", "0", "0"],
    ]
    monkeypatch.setattr("jobqueue.admin.groups.workflow.SUMMED_MAX", 3)
    assert "too many nodes to be drawn" in text_of(looker_again().get(page_of(number)))


def test_the_tabs_are_those_that_have_not_ended_and_those_that_have():
    made(0, name="over")
    first = made(1, name="running")
    client = looker()
    page = text_of(client.get(LIST))
    assert re.findall(r'aria-current="page">(\w+)</a>', page.partition("jobqueue-group-tabs")[2]) == ["All"]
    live, ended = text_of(client.get(LIST, {"state": "live"})), text_of(client.get(LIST, {"state": "ended"}))
    assert re.findall(r">#(\d+)<", live) == [str(first)]
    assert "over" in ended
    assert "running</a>" not in ended
    assert 'Not ended <span class="jobqueue-number">1</span>' in page
    assert client.get(LIST, {"state": "other"}).status_code == 302


def test_callbacks_are_named_by_their_tasks():
    number = diamond()
    words = plain_text(text_of(looker().get(page_of(number))))
    assert "on success: app.group_succeeded" in words


def test_a_group_is_found_by_its_id_and_its_name():
    first, second = made(1, name="import"), made(1, name="export")
    client = looker()
    for term, found in (("import", first), (str(second), second)):
        page = text_of(client.get(LIST, {"q": term}))
        assert re.findall(r">#(\d+)<", page) == [str(found)]
    assert re.findall(r">#(\d+)<", text_of(client.get(LIST, {"q": "nothing"}))) == []


class TestVerbs:
    def test_seal_lets_an_open_group_end(self):
        number = made(2)
        JobGroup.objects.filter(pk=number).update(state=JobGroup.State.OPEN, sealed_at=None)
        response = act(root(), "seal", number, path=LIST)
        assert said(response) == ["1 group was sealed."]
        assert groups.get(number).state == "sealed"
        assert LogEntry.objects.get().change_message == "seal (was open)"

    def test_cancel_ends_the_members_that_wait(self):
        number = made(3)
        response = act(root(), "cancel", number, path=LIST)
        assert said(response) == ["1 group was canceled; its running members are asked to stop."]
        assert groups.get(number).canceled == 3

    def test_resume_shows_first_what_would_run(self):
        number = diamond("hold")
        Job.objects.filter(pk=job("top").pk).update(max_attempts=1, priority=9)
        (lease,) = claimed()
        transitions.fail(lease, error="wrong")
        client = root()
        page = text_of(act(client, "resume", number, path=LIST))
        assert "Nothing has been changed yet." in page
        assert "top" in plain_text(page)
        assert LogEntry.objects.count() == 0
        response = act(client, "resume", number, path=LIST, confirm="yes")
        assert "will run again." in said(response)[0]
        assert LogEntry.objects.get().change_message.startswith("resume (")

    def test_a_group_that_is_no_workflow_cannot_be_resumed(self):
        response = act(root(), "resume", made(1), path=LIST)
        assert "there is no workflow" in said(response)[0]

    @pytest.mark.parametrize("verb", ["seal", "cancel", "resume"])
    def test_each_needs_a_permission(self, verb):
        number = made(2)
        client = looker()
        act(client, verb, number, path=LIST)
        assert groups.get(number).state == "sealed"
        assert groups.get(number).canceled_at is None
        assert 'name="action" value=' not in text_of(client.get(page_of(number)))

    def test_buttons_are_those_that_can_change_something(self):
        number = made(2)
        page = text_of(looker("cancel_job", "retry_job").get(page_of(number)))
        assert re.findall(r'name="action" value="(\w+)"', page) == ["cancel"]


def test_without_permission_there_is_no_page():
    number = made(1)
    client = client_of(person("view_job"))
    assert {client.get(address).status_code for address in (LIST, page_of(number))} == {403}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_are_text(hostile):
    number = made(1)
    # Plain SQL may have written any name.
    JobGroup.objects.update(name=hostile)
    client = looker()
    for address in (LIST, page_of(number)):
        page = text_of(client.get(address))
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "\u202e" not in page
