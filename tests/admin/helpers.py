"""What the tests of pages share: people with permissions, pages, hostile text."""

import re
from html.parser import HTMLParser

from django.contrib.auth.models import Permission, User
from django.core.cache.backends.locmem import LocMemCache
from django.test import Client
from django.urls import reverse

from tests.settings import VENDOR

JOBS = "/admin/jobqueue/job/"
WORKERS = "/admin/jobqueue/worker/"
VERBS = ("retry", "cancel", "discard", "release")

SCRIPT = "<script>alert(1)</script>"
#: what limits the time of a page's statements: it reads the session's limit, sets one and sets the old one again
LIMIT_STATEMENTS = {"mysql": 3, "mariadb": 3, "postgres": 5}.get(VENDOR, 0)
HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "{{7*7}}", "a\u202eb"]


class KeepsAll(LocMemCache):
    """A cache whose entries never expire: on a busy machine two looks may be further apart than they are kept."""

    def set(self, key, value, timeout=None, version=None):
        super().set(key, value, None, version)


KEEPS_ALL = {"default": {"BACKEND": f"{__name__}.KeepsAll", "LOCATION": "keeps-all"}}


def person(*codenames, name="ann", staff=True):
    """A user with these permissions of the product."""
    user = User.objects.create_user(name, password="x", is_staff=staff)
    found = list(Permission.objects.filter(content_type__app_label="jobqueue", codename__in=codenames))
    assert {p.codename for p in found} == set(codenames)
    user.user_permissions.set(found)
    return user


def client_of(user, **options):
    """A browser in which `user` has logged in."""
    client = Client(**options)
    if user is not None:
        client.force_login(user)
    return client


def viewer(*more, **options):
    """A browser of somebody who may see jobs and workers, and `more`."""
    return client_of(person("view_job", "view_worker", *more), **options)


def root(**options):
    """A browser of a superuser."""
    return client_of(User.objects.create_superuser("root", password="x"), **options)


def job_page(job_id):
    """The address of a job's page."""
    return reverse("admin:jobqueue_job_change", args=[job_id])


def act(client, verb, *ids, path=JOBS, **data):
    """Choose rows and an action, as the list's form does."""
    return client.post(path, {"action": verb, "_selected_action": list(ids), "index": 0, **data})


def text_of(response):
    """The page."""
    assert response.status_code == 200, response.status_code
    return response.content.decode()


_OF_SESSIONS = re.compile("SAVEPOINT|BEGIN|COMMIT|set_config|pg_settings|max_(execution|statement)_time", re.I)


def sent(captured):
    """The statements of a CaptureQueriesContext, without those that limit the time of others as each server does."""
    return [query["sql"] for query in captured.captured_queries if not _OF_SESSIONS.search(query["sql"][:200])]


class Inline(HTMLParser):
    """Finds what a strict content security policy would refuse."""

    def __init__(self, page):
        super().__init__()
        self.found, self.tags = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        self.tags.append((tag, names))
        if tag == "style" or (tag == "script" and "src" not in names and names.get("type") != "application/json"):
            self.found.append(tag)
        self.found += [f"{tag} {name}" for name in names if name == "style" or name.startswith("on")]
        self.found += [f"{tag} {v}" for n, v in attrs if n in ("href", "src") and (v or "").startswith("javascript:")]
