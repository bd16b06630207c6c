"""The overview when Django's cache fails: it reads its figures itself."""

import logging

import pytest
from django.core.cache import cache
from django.core.cache.backends.locmem import LocMemCache

from jobqueue.admin.page import limited
from tests.admin.helpers import root, text_of
from tests.factories import make_jobs

pytestmark = pytest.mark.django_db
PAGE = "/admin/jobqueue/"


class Down(LocMemCache):
    """A cache whose server is down."""

    asked = 0

    def get(self, *args, **options):
        Down.asked += 1
        raise ConnectionError("Error 111 connecting to cache:6379. Connection refused.")

    set = get


class ReadOnly(LocMemCache):
    """A cache that answers, but whose server accepts no writes."""

    def set(self, *args, **options):
        raise OSError("READONLY You can't write against a read only replica.")


@pytest.fixture(autouse=True)
def never_failed(monkeypatch):
    # The backends below have the memory of the default one, in which other tests of this process have put figures.
    cache.clear()
    Down.asked = 0
    monkeypatch.setattr(limited.safely, "until", None)


def use(settings, backend):
    settings.CACHES = {"default": {"BACKEND": f"{__name__}.{backend.__name__}"}}


@pytest.mark.parametrize("backend", [Down, ReadOnly])
def test_the_figures_are_read_without_the_cache_and_one_warning_says_so(backend, settings, caplog):
    use(settings, backend)
    make_jobs(3, "mail")
    with caplog.at_level(logging.WARNING, logger="jobqueue.admin"):
        page = text_of(root().get(PAGE))
    assert 'state=ready"><span class="jobqueue-tile-word">Ready</span> <span class="jobqueue-tile-figure">3' in page
    ours = [record for record in caplog.records if record.name == "jobqueue.admin"]
    assert [record.levelname for record in ours] == ["WARNING"]
    assert "Django's cache failed" in ours[0].getMessage()


def test_a_cache_that_is_down_is_asked_once_and_again_after_a_while(settings, monkeypatch):
    use(settings, Down)
    client = root()
    client.get(PAGE)
    client.get(PAGE)
    assert Down.asked == 1
    monkeypatch.setattr(limited.safely, "until", 0.0)
    client.get(PAGE)
    assert Down.asked == 2


def test_a_cache_that_answers_again_is_used_again(settings, monkeypatch):
    use(settings, Down)
    reads = []
    limited.kept("x", lambda: reads.append(1), 2)
    use(settings, LocMemCache)
    monkeypatch.setattr(limited.safely, "until", 0.0)
    for _ in range(3):
        limited.kept("x", lambda: reads.append(1), 2)
    assert len(reads) == 2
    assert limited.safely.until is None
