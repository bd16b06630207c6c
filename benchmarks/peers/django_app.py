"""Shared by the adapters of Django apps: set-up and tables."""

from __future__ import annotations

import django


def tables(app: str) -> None:
    """Create the app's tables if they do not exist, and empty them."""
    django.setup()
    from django.apps import apps
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        for model in apps.get_app_config(app).get_models():
            if not model._meta.proxy:
                cursor.execute(f"DELETE FROM {quote(model._meta.db_table)}")
