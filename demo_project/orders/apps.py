"""The app's name."""

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    """demo_project.orders"""

    name = "demo_project.orders"
