"""The app's name."""

from django.apps import AppConfig


class DemoConfig(AppConfig):
    """demo_project.demo"""

    name = "demo_project.demo"
