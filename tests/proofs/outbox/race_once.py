"""python -m tests.proofs.outbox.race_once COUNT GO: one of two processes that use the same keys at the same time."""

import os
import sys
import time
from pathlib import Path

import django

django.setup()

from django.db import transaction  # noqa: E402

from jobqueue.idempotency import once  # noqa: E402
from tests.app.models import Ticket  # noqa: E402


def main(count, go):
    print("ready", flush=True)
    while not Path(go).exists():
        time.sleep(0.001)
    for n in range(count):
        with transaction.atomic():
            with once(("race", n), timeout_seconds=60) as o:
                if not o.done:
                    Ticket.objects.create(number=f"{n}-{os.getpid()}", buyer=str(n))
                    o.result = {"n": n, "by": os.getpid()}
        print(n, o.result["by"], int(o.done))


main(int(sys.argv[1]), sys.argv[2])
