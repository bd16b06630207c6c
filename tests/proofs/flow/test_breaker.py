"""A circuit breaker and a real HTTP server that is switched off and on."""

from __future__ import annotations

import time

import pytest

from jobqueue import flow
from jobqueue.failures.dependencies import DependencySettings
from jobqueue.models import Job
from tests.marks import committed
from tests.patience import patient
from tests.proofs.customers import customers
from tests.proofs.running import unended, wait_for

pytestmark = [committed, pytest.mark.timeout(900)]
PER_SECOND, WORKERS, THREADS = 40, 4, 2


def spent():
    """How many attempts were used so far."""
    return sum(Job.objects.exclude(attempts=0).values_list("attempts", flat=True))


def test_an_outage_costs_few_attempts_and_few_requests(run_worker, jobs, shop, full, figure):
    """4 workers, 40 new jobs per second, and their service switched off and on: seconds, attempts and requests."""
    outages, seconds = (5, 20) if full else (1, 2)
    workers = [run_worker("--concurrency", str(THREADS), "--lease", "60s") for _ in range(WORKERS)]
    breaker = flow.breaker("shop")
    opened, closed, costs, in_all, while_open = [], [], [], [], []

    def requests():
        return sum(len(worker.lines("run")) for worker in workers)

    with customers(jobs.buys, shop.url, PER_SECOND):
        for _ in range(outages):
            seen = shop.requests
            wait_for(lambda: shop.requests > seen + 2 * PER_SECOND, 60, lambda: unended(workers))  # noqa: B023
            before = spent()
            shop.switch_off()
            off, sent = time.monotonic(), requests()
            wait_for(lambda: breaker.state != "closed", 30, lambda: unended(workers))
            opened.append(time.monotonic() - off)
            # What was running then has ended.
            wait_for(lambda: waiting() > 10, 30, lambda: unended(workers))
            known, calls = time.monotonic(), requests()
            time.sleep(seconds)
            while_open.append((requests() - calls) / (time.monotonic() - known))
            in_all.append(requests() - sent)
            shop.switch_on()
            on = time.monotonic()
            wait_for(lambda: breaker.state == "closed", 30, lambda: unended(workers))
            closed.append(time.monotonic() - on)
            wait_for(lambda: not waiting(), 60, lambda: unended(workers))
            costs.append(spent() - before)
    wait_for(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), 120, lambda: unended(workers))
    limit = 2.0 if full else patient(0.4)
    assert max(opened) < limit
    assert max(closed) < limit
    most = DependencySettings().failures + WORKERS * THREADS
    assert max(costs) <= most
    # A probe each second.
    assert max(while_open) <= 1 + 2 / seconds
    figure("outages", outages)
    figure("opened after at most s", round(max(opened), 2))
    figure("closed after at most s", round(max(closed), 2))
    figure("threshold + running / most attempts of an outage", f"{most} / {max(costs)}")
    figure("requests to the dead service, each outage", ", ".join(map(str, in_all)))
    figure("requests per second while it was open", round(max(while_open), 2))
    figure("jobs that failed for good", 0)


def waiting():
    """How many jobs wait for the breaker."""
    return Job.objects.filter(status=Job.Status.READY, wait_reason="breaker shop").count()
