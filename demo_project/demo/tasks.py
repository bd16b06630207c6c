"""The sample jobs of `make serve`: five tasks of a shop, each with its own way to fail."""

import json
import time

from jobqueue import current_job, task

#: a card is refused above this amount
LIMIT_CENTS = 50_000
PIXELS_MAX = 40_000_000


class CardDeclined(ValueError):
    """The bank refuses the payment."""


@task(queue_name="mail", max_attempts=5)
def send_receipt(order: int, address: str) -> str:
    """Fails for addresses of one domain, whose mail server does not answer."""
    if address.endswith("@slow.example"):
        raise ConnectionRefusedError(f"mx.slow.example:25 refused the connection for {address}")
    return f"receipt {order} sent to {address}"


@task(queue_name="payments", priority=10, max_attempts=3)
def charge_card(order: int, cents: int) -> str:
    """Fails for large amounts."""
    if cents > LIMIT_CENTS:
        raise CardDeclined(f"order {order}: the bank declined {cents / 100:.2f} EUR (insufficient funds)")
    return f"paid {cents / 100:.2f} EUR"


@task(queue_name="media", max_attempts=2)
def resize_picture(path: str, width: int, height: int) -> dict[str, int]:
    """Fails for pictures that are none, and for those that do not fit into memory."""
    if not path.endswith((".jpg", ".png")):
        raise ValueError(f"{path} is not a picture: it begins with b'<!doctype html>'")
    if width * height > PIXELS_MAX:
        raise MemoryError(f"{width} x {height} pixels need {4 * width * height // 2**20} MiB")
    return {"width": 640, "height": 640 * height // width}


@task(queue_name="imports", max_attempts=3)
def import_prices(supplier: str, rows: int, seconds: float = 0.0) -> dict[str, int]:
    """Takes `seconds` and reports its progress; fails for one supplier, whose file is cut off."""
    if supplier == "broken-lamps":
        json.loads('{"prices": [{"lamp": 1999}, {"la')
    job = current_job()
    if job is not None:
        for row in range(0, rows, max(1, rows // 50)):
            if job.should_stop:
                return {"rows": row}
            job.progress(row, rows, f"prices of {supplier}")
            time.sleep(seconds / 50)
    return {"rows": rows}


@task(queue_name="reports", priority=-10, max_attempts=2)
def sales_report(day: str, orders: int, cents: int) -> str:
    """Fails for a day without orders."""
    return f"{day}: {orders} orders, {cents / orders / 100:.2f} EUR each"
