"""The app's name."""

from django.apps import AppConfig


class AuctionConfig(AppConfig):
    """demo_project.auction"""

    name = "demo_project.auction"
