"""The app's name."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """demo_project.billing"""

    name = "demo_project.billing"
