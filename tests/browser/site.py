"""The admin site of this process on a port of its own, with static files and the strict policy."""

from contextlib import contextmanager

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.test import Client
from django.test.testcases import LiveServerThread
from django.test.utils import override_settings

HOST = "localhost"
_SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
_LOCALE = "django.middleware.locale.LocaleMiddleware"
_POLICY = "tests.browser.policy.StrictPolicy"


@contextmanager
def served():
    """The address of the site. The queue's database must be a file, which the threads of the server open themselves."""
    middleware = [_POLICY, *(name for name in settings.MIDDLEWARE if name != _LOCALE)]
    middleware.insert(middleware.index(_SESSIONS) + 1, _LOCALE)
    with override_settings(MIDDLEWARE=middleware, ALLOWED_HOSTS=[HOST, "testserver"], LANGUAGE_CODE="en"):
        server = LiveServerThread(HOST, StaticFilesHandler)
        server.daemon = True
        server.start()
        server.is_ready.wait()
        try:
            if server.error:
                raise server.error
            yield f"http://{HOST}:{server.port}"
        finally:
            server.terminate()


def logged_in(name="root"):
    """A test client of a superuser, who is made if there is none of this name."""
    user = User.objects.filter(username=name).first() or User.objects.create_superuser(name)
    client = Client()
    client.force_login(user)
    return client
