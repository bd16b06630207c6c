"""The job that needs the payment service."""

import json
from urllib.request import Request, urlopen

from jobqueue import task

TIMEOUT_SECONDS = 20.0


@task(queue_name="payments", max_attempts=2, backoff=(0.1,))
def charge(order: str, card: str, url: str) -> int:
    """Charge a card; returns the HTTP status. A service that does not answer, or refuses, is an error of the job."""
    body = json.dumps({"order": order, "card": card}).encode()
    # The order is the key by which a payment service knows a repeated call.
    headers = {"Content-Type": "application/json", "Idempotency-Key": order}
    with urlopen(Request(url, body, headers), timeout=TIMEOUT_SECONDS) as answer:
        return int(answer.status)
