"""The superuser of the demo."""

import secrets

from django.contrib.auth import get_user_model

USER = "admin"


def make_superuser(password: str = "") -> str:
    """Create or reuse the superuser. Returns its password: a new one, which is stored nowhere, unless one is given."""
    password = password or secrets.token_urlsafe(12)
    user, _ = get_user_model().objects.get_or_create(username=USER)
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(password)
    user.save()
    return password
