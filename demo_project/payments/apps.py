"""The app's name."""

from django.apps import AppConfig


class PaymentsConfig(AppConfig):
    """demo_project.payments"""

    name = "demo_project.payments"
