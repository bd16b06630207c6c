"""The app's name."""

from django.apps import AppConfig


class PackingConfig(AppConfig):
    """demo_project.packing"""

    name = "demo_project.packing"
