"""manage.py jobs enqueue adds a job where the backend of its task says, and nowhere else."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobqueue.models import Job
from tests.own_database.conftest import QUEUE, SHOP

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "queue", "shop"])
WORDS = ("jobs", "enqueue", "tests.app.tasks.add", "--args", "[1, 2]")


def test_a_job_is_added_to_the_database_of_the_queue():
    out = StringIO()
    call_command(*WORDS, "--in", "10m", "--json", stdout=out)
    assert Job.objects.using(QUEUE).get().pk == json.loads(out.getvalue())["id"]


def test_another_database_is_refused():
    with pytest.raises(CommandError, match=f"are added to '{QUEUE}', .* and not to '{SHOP}'") as error:
        call_command(*WORDS, "--database", SHOP)
    assert error.value.returncode == 2
    assert not Job.objects.using(QUEUE).exists()
