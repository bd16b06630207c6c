"""The app's name."""

from django.apps import AppConfig


class SerialsConfig(AppConfig):
    """demo_project.serials"""

    name = "demo_project.serials"
