"""The members of a group by state, and the group on the page of a job: what is shown, to whom, and what it costs."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import transitions
from jobqueue.admin.groups import members as group_members
from jobqueue.models import GroupMember, Job, JobGroup
from tests.admin.helpers import HOSTILE, Inline, client_of, job_page, person, root, sent, text_of
from tests.admin.test_groups import LIST, looker, made, page_of, plain_text
from tests.factories import make_job
from tests.groups.helpers import claimed
from tests.groups.nodes import diamond, job

pytestmark = pytest.mark.django_db


def members(group_id, state):
    return f"{LIST}{group_id}/members/{state}/"


def shown(page):
    return [
        int(number)
        for number in re.findall(r'<th scope="row" role="rowheader"><a href="/admin/jobqueue/job/(\d+)/', page)
    ]


def failed_one(group_id, text="no funds"):
    (lease,) = claimed()
    transitions.fail(lease, error=ValueError(text), delay_seconds=0)
    GroupMember.objects.filter(pk=lease.job_id).update(state=GroupMember.State.FAILED)
    return lease.job_id


def test_the_page_of_a_group_leads_to_the_members_in_each_state():
    number = made(3)
    failed_one(number)
    page = text_of(looker("view_job").get(page_of(number)))
    assert f'<a href="{members(number, "outstanding")}">2 not ended</a>' in page
    assert f'<a href="{members(number, "failed")}">1 failed</a>' in page
    assert members(number, "done") not in page


def test_the_list_has_the_newest_first_with_their_errors():
    number = made(3)
    first, second = failed_one(number, "no funds"), failed_one(number, "gone")
    page = text_of(looker("view_job").get(members(number, "failed")))
    assert Inline(page).found == []
    assert shown(page) == [second, first]
    assert "ValueError: gone" in plain_text(page)


def test_a_node_that_waits_for_its_parents_is_not_called_ready():
    page = text_of(looker("view_job").get(members(diamond(), "outstanding")))
    assert re.findall(r'jobqueue-state jobqueue-(\w+)"', page) == ["parents", "parents", "parents", "ready"]


def test_pages_follow_each_other_without_gaps(monkeypatch):
    monkeypatch.setattr(group_members, "PAGE", 2)
    number = made(5)
    client, address, found = looker("view_job"), members(number, "outstanding"), []
    while address:
        page = text_of(client.get(address))
        found.append(shown(page))
        later = re.findall(r'<a href="([^"]*)" class="jobqueue-to-next"', page)
        address = later[0] if later else None
    every = sorted(GroupMember.objects.values_list("pk", flat=True), reverse=True)
    assert found == [every[:2], every[2:4], every[4:]]


def test_a_member_whose_job_was_deleted_is_still_listed():
    number = made(1)
    (pk,) = Job.objects.values_list("pk", flat=True)
    Job.objects.all().delete()
    words = plain_text(text_of(looker("view_job").get(members(number, "outstanding"))))
    assert f"{pk} (deleted)" in words


@pytest.mark.parametrize("query", ["before=x", "before=-1", "before=99999999999999999999", "before=\u0661", "before="])
def test_an_odd_place_is_the_beginning(query):
    number = made(1)
    assert len(shown(text_of(looker("view_job").get(f"{members(number, 'outstanding')}?{query}")))) == 1


def test_an_unknown_group_or_state_is_not_found():
    client, number = looker("view_job"), made(1)
    for address in (members(number, "other"), members(number + 1, "failed"), members(2**80, "failed")):
        assert client.get(address).status_code == 404


@pytest.mark.parametrize("permission", ["view_jobgroup", "view_job", "view_worker"])
def test_the_list_needs_both_permissions(permission):
    number = made(1)
    assert client_of(person(permission)).get(members(number, "failed")).status_code == 403


def test_without_the_permission_to_see_jobs_a_group_shows_counts_but_no_job():
    number = made(2)
    failed = failed_one(number, "very secret")
    page = text_of(looker().get(page_of(number)))
    words = plain_text(page)
    assert "1 not ended · 1 failed" in words
    assert "very secret" not in page
    assert f"/job/{failed}/" not in page
    assert "/members/" not in page


def test_without_that_permission_a_workflow_is_drawn_without_links():
    page = text_of(looker().get(page_of(diamond())))
    assert page.count('<g class="jobqueue-node jobqueue-node-') == 4
    assert "/admin/jobqueue/job/" not in page


@pytest.mark.parametrize("address", [page_of, lambda number: members(number, "outstanding")], ids=["group", "members"])
def test_the_pages_cost_the_same_with_10_and_1000_members(address):
    counted, client = [], root()
    for many in (10, 1000):
        number = made(many)
        client.get(address(number))
        with CaptureQueriesContext(connection) as captured:
            text_of(client.get(address(number)))
        statements = sent(captured)
        counted.append(len(statements))
        assert not [sql for sql in statements if "OFFSET" in sql]
        assert not [sql for sql in statements if "job_group_member" in sql and "LIMIT" not in sql]
    assert counted[0] == counted[1]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_is_text(hostile):
    number = made(1)
    failed_one(number, hostile)
    JobGroup.objects.update(name=hostile)
    GroupMember.objects.update(name=hostile)
    for address in (members(number, "failed"), page_of(number)):
        page = text_of(root_again().get(address))
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "\u202e" not in page


def root_again():
    from django.contrib.auth.models import User

    return client_of(User.objects.filter(is_superuser=True).first()) if User.objects.exists() else root()


class TestJobPage:
    def test_a_member_leads_to_its_group(self):
        number = made(1, name="import")
        (pk,) = Job.objects.values_list("pk", flat=True)
        page = text_of(root().get(job_page(pk)))
        assert f'<a href="{page_of(number)}">group {number}: import</a>' in page

    def test_a_node_leads_to_its_workflow_and_its_parents(self):
        number = diamond()
        page = text_of(root().get(job_page(job("bottom").pk)))
        assert f'<a href="{page_of(number)}">workflow {number}: publish</a>' in page
        for parent in ("left", "right"):
            assert f'<a href="{job_page(job(parent).pk)}">{parent}</a>' in page

    def test_a_callback_leads_to_its_group(self):
        number = diamond("cancel")
        Job.objects.filter(pk=job("top").pk).update(max_attempts=1)
        (lease,) = claimed()
        transitions.fail(lease, error="wrong")
        callback = Job.objects.get(options__callback_of=number, task__endswith="group_failed")
        words = plain_text(text_of(root().get(job_page(callback.pk))))
        assert f"workflow {number}: publish (a callback of it)" in words

    def test_a_deleted_group_is_named(self):
        number = made(1)
        (pk,) = Job.objects.values_list("pk", flat=True)
        JobGroup.objects.all().delete()
        assert f"group {number}, which was deleted" in plain_text(text_of(root().get(job_page(pk))))

    def test_without_permission_to_see_groups_there_is_no_link(self):
        number = made(1, name="import")
        (pk,) = Job.objects.values_list("pk", flat=True)
        page = text_of(client_of(person("view_job")).get(job_page(pk)))
        assert f"group {number}: import" in page
        assert page_of(number) not in page

    def test_a_job_without_a_group_has_no_such_line_and_reads_no_group(self):
        pk = make_job()
        client = root()
        with CaptureQueriesContext(connection) as captured:
            page = text_of(client.get(job_page(pk)))
        assert "field-group" not in page
        assert not [sql for sql in sent(captured) if "job_group" in sql]

    @pytest.mark.parametrize("hostile", HOSTILE)
    def test_hostile_names_are_text(self, hostile):
        diamond()
        pk = job("bottom").pk
        JobGroup.objects.update(name=hostile)
        GroupMember.objects.update(name=hostile)
        page = text_of(root().get(job_page(pk)))
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "\u202e" not in page
