"""Secrets are on no page."""

import pytest

from jobqueue.transitions import fail
from tests.admin.helpers import JOBS, job_page, text_of, viewer
from tests.app import tasks
from tests.factories import claim_one, set_columns

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("more", [(), ("view_payload",)])
def test_a_secret_in_any_column_of_a_job_is_not_on_its_page_nor_in_the_list(more):
    made = tasks.greet.enqueue("password=hunter2zz", 1)
    fail(claim_one("default"), error=ValueError("no: token=hunter2zz"), log="12:00 shop: mysql://kim:hunter2zz@db/x")
    set_columns(
        made.id,
        progress={"done": 1, "total": 2, "note": "secret: hunter2zz"},
        result={"a": [{"apiKey": "hunter2zz"}]},
        wait_reason="after ValueError: password=hunter2zz",
    )
    client = viewer(*more)
    pages = [text_of(client.get(job_page(made.id))), text_of(client.get(JOBS))]
    assert all("hunter2zz" not in page for page in pages)
    assert "token=********" in pages[0]
    assert ("apiKey" in pages[0]) == bool(more)
