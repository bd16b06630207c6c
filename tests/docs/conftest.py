"""What the page tests share."""

import pytest

from jobqueue.models import Job, JobAttempt, Worker


@pytest.fixture
def tables(transactional_db):
    """Empty job tables, with real commits."""
    for model in (Job, JobAttempt, Worker):
        model.objects.all().delete()
