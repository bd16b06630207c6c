"""The host app of the tests."""

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """tests.app"""

    name = "tests.app"
    label = "testapp"
