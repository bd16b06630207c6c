"""python -m tests.proofs.dashboard.server_time DATABASE TIMES: how long each page takes, in a process of its own.

As a server has: in the process of a pytest session pages with many statements take 1.4 times as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]


def seconds_by_page(database: str, times: int) -> dict[str, list[float]]:
    """The seconds of so many requests of each page, by its name; each without what was kept from the one before."""
    command = [sys.executable, "-m", "tests.proofs.dashboard.server_time", database, str(times)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def _measure(times: int) -> dict[str, list[float]]:
    from django.contrib.auth.models import User
    from django.test import Client

    from tests.proofs.dashboard.pages import addresses

    client = Client()
    client.force_login(User.objects.get(username="root"))
    return {name: [_seconds(client, address) for _ in range(times + 2)][2:] for name, address in addresses()}


def _seconds(client, address) -> float:
    from django.core.cache import cache

    cache.clear()
    begun = time.perf_counter()
    response = client.get(address)
    seconds = time.perf_counter() - begun
    assert response.status_code in (200, 302), (address, response.status_code)
    return seconds


def _main(database: str, times: str) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django
    from django.conf import settings

    settings.DATABASES["default"]["NAME"] = database
    settings.ALLOWED_HOSTS = ["testserver"]
    django.setup()
    print(json.dumps(_measure(int(times))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
