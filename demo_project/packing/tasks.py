"""The job that packs a parcel."""

import json
import time
from urllib.request import Request, urlopen

from jobqueue import task

#: parcels for which the bench has room
PLACES = 2
TIMEOUT_SECONDS = 20.0


@task(queue_name="packing", concurrency_limit=PLACES)
def pack(parcel: str, url: str) -> None:
    """Pack a parcel at the bench: however many workers there are, no more at once than the bench has places.

    The bench is told when the job began, by time.monotonic() of this host.
    """
    body = json.dumps({"parcel": parcel, "began": time.monotonic()}).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=TIMEOUT_SECONDS):
        pass
