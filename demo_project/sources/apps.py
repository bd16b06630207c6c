"""The app's name."""

from django.apps import AppConfig


class SourcesConfig(AppConfig):
    """demo_project.sources"""

    name = "demo_project.sources"
