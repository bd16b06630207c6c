"""What a command does when nobody reads its output any more, as in `manage.py jobs list | head -1`."""

import os
from contextlib import contextmanager, suppress

import pytest
from django.core.management import call_command

from jobqueue.cli.output import READER_GONE
from jobqueue.models import AuditEvent, Job
from tests.cli.helpers import read_until
from tests.cli.processes import start
from tests.factories import make_job
from tests.marks import committed
from tests.patience import patient


@contextmanager
def unread():
    """A file that is written into a pipe whose reader has gone."""
    ours, theirs = os.pipe()
    os.close(ours)
    with suppress(BrokenPipeError), os.fdopen(theirs, "w") as written:
        yield written


@committed
@pytest.mark.parametrize("words", [("show", "{job}"), ("list",), ("doctor", "--json"), ("completion", "bash"), ()])
def test_the_process_ends_without_a_word_as_after_sigpipe(words):
    job = make_job()
    with start(*(word.format(job=job) for word in words)) as process:
        process.stdout.close()
        assert process.wait(patient()) == READER_GONE == 141
        assert process.stderr.read() == b""


@committed
def test_so_does_one_that_prints_again_and_again():
    with start("workers", "--watch", "50ms") as process:
        read_until(process.stdout.fileno(), "no worker runs")
        process.stdout.close()
        assert process.wait(patient()) == READER_GONE
        assert process.stderr.read() == b""


@pytest.mark.django_db
@pytest.mark.parametrize(
    "words", [("jobs", "locks"), ("jobs", "explain", "--queue", "mail"), ("reap_leases", "--dry-run")]
)
def test_the_status_is_that_of_sigpipe(words):
    with unread() as out, pytest.raises(SystemExit) as ended:
        call_command(*words, stdout=out)
    assert ended.value.code == READER_GONE


@pytest.mark.django_db
def test_jobs_that_were_changed_are_in_the_audit_all_the_same():
    job = make_job()
    with unread() as out, pytest.raises(SystemExit):
        call_command("jobs", "cancel", str(job), stdout=out)
    assert Job.objects.get(pk=job).status == Job.Status.CANCELED
    assert AuditEvent.objects.get().filters == {"job_ids": str(job)}
