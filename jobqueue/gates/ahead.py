"""The jobs that this process has opened and that no claim has met yet: the next slots and tokens are theirs."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable

from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job

#: jobs of one subject, and subjects, that are remembered, and for how long: whoever serves their queue may be unable to
#: run them. For one that is forgotten another one is opened.
JOBS_MAX, SUBJECTS_MAX, SECONDS_MAX = 1000, 1000, 600.0


class _Opened:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int], dict[int, float]] = OrderedDict()

    def add(self, subject: int, ids: Iterable[int], using: str) -> None:
        """Remember jobs that were opened for a slot or a token of `subject`."""
        with self._lock:
            known = self._known.setdefault((using, subject), {})
            known |= dict.fromkeys(ids, time.monotonic())
            for first in list(known)[:-JOBS_MAX]:
                del known[first]
            self._known.move_to_end((using, subject))
            if len(self._known) > SUBJECTS_MAX:
                self._known.popitem(last=False)

    def open_still(self, subjects: Collection[int], using: str) -> dict[int, int]:
        """How many of them are due and wait for a claim, by subject. One statement if any is remembered."""
        since = time.monotonic() - SECONDS_MAX
        with self._lock:
            known = {one: dict(self._known.get((using, one), {})) for one in subjects}
        asked = {job_id for ids in known.values() for job_id, at in ids.items() if at >= since}
        if not asked:
            return {}
        rows = Job.objects.using(using).filter(pk__in=asked, status=Job.Status.READY, gate=0, run_at__lte=UtcNow())
        found: set[int] = retry_transient("promote", lambda: set(rows.values_list("pk", flat=True)), using=using)
        with self._lock:
            for subject, ids in known.items():
                left = self._known.get((using, subject), {})
                for job_id in ids.keys() - found:
                    left.pop(job_id, None)
                if not left:
                    self._known.pop((using, subject), None)
        return {subject: len(ids.keys() & found) for subject, ids in known.items()}

    def clear(self) -> None:
        """Remember nothing: the database may be another one, or its ids begin again."""
        with self._lock:
            self._known.clear()


opened = _Opened()
