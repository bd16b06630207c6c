"""Every page and every form of the admin refuses users without its permission."""

import pytest

from jobqueue.models import Job
from tests.admin import refusals
from tests.admin.helpers import root
from tests.browser import rows

pytestmark = pytest.mark.django_db(transaction=True)


def test_without_a_permission_no_page_is_shown_and_no_form_is_carried_out():
    rows.fill()
    paths, forms = refusals.offered(root())
    assert refusals.pages_shown(paths.values()) == []
    sent, wrong = refusals.forms_carried_out(forms)
    assert wrong == []
    assert len(paths) > 30
    assert sent > 50


def test_what_was_sent_is_what_a_superuser_can_carry_out():
    rows.fill()
    client = root()
    paths, forms = refusals.offered(client)
    retry = [
        (address, values)
        for page, form in forms
        for address, values in form.ways()
        if page == paths["jobqueue_job_changelist"] and values.get("action") == "cancel"
    ]
    assert retry
    before = refusals.stored()
    ready = str(Job.objects.filter(status=Job.Status.READY).values_list("pk", flat=True).first())
    for address, values in retry:
        client.post(address, values | {"_selected_action": ready})
    assert refusals.stored() != before
