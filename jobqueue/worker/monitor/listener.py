"""The monitor's thread that receives wake-ups from other processes and wakes children, which otherwise only poll."""

from __future__ import annotations

import logging
import math
import threading
import time

from jobqueue import wakeup
from jobqueue.db.outage import URGENT_SECONDS, Outage
from jobqueue.exceptions import NotSupported
from jobqueue.log_format import one_line
from jobqueue.wakeup import QUIET_SECONDS, Notifier
from jobqueue.wakeup.notifiers import Subscription
from jobqueue.worker.shared.wakeup_pipes import WakeupPipes
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

CHECK_SECONDS = 30.0  # after this long without a wake-up, check whether the connection still works


class Listener:
    """Listens on one connection of its own, until its process ends."""

    def __init__(self, options: Options, wakeups: WakeupPipes) -> None:
        self._options, self._wakeups = options, wakeups
        self._outage = Outage(
            "the monitor", "receive wake-ups", options.database, most_seconds=URGENT_SECONDS, meanwhile="workers poll"
        )

    def start(self) -> None:
        """Listen in a daemon thread, if there is a notifier and children may be idle."""
        if self._options.once or self._options.drain:
            return
        notifier = wakeup.notifier_of(self._options.database)
        if notifier is not None:
            try:
                threading.Thread(target=self._run, args=(notifier,), name="listener", daemon=True).start()
            except RuntimeError as error:
                # A monitor that cannot listen still renews leases.
                logger.warning("wake-ups are not received, workers poll: %s", error)

    def _run(self, notifier: Notifier) -> None:
        while True:
            subscription: Subscription | None = None
            try:
                subscription = notifier.subscribe()
                self._outage.over()
                # Wake-ups sent before the subscription were lost.
                self._wakeups.wake()
                self._listen(subscription)
            except NotSupported as error:
                logger.warning("wake-ups are not received: %s", error)
                return
            except Exception as error:
                # A driver may raise any exception; without wake-ups the children still poll.
                self._outage.met(error)
            finally:
                self._close(subscription)
            time.sleep(max(0.0, self._outage.next_try - time.monotonic()))

    def _listen(self, subscription: Subscription) -> None:
        check_at, again_at = time.monotonic() + CHECK_SECONDS, math.inf
        while True:
            queues = subscription.receive(max(0.0, min(check_at, again_at) - time.monotonic()))
            served = [queue for queue in queues if self._options.selection.serves(queue)]
            for _ in served:
                self._wakeups.wake()
            if served:
                logger.debug("wake-up: a job was committed to %s", one_line(", ".join(sorted(set(served)))))
            now = time.monotonic()
            if served:
                again_at = now + QUIET_SECONDS
            elif now >= again_at:
                # Enqueuers may have suppressed wake-ups meanwhile.
                again_at = math.inf
                self._wakeups.wake_another()
            if queues:
                check_at = now + CHECK_SECONDS
            elif now >= check_at:
                check_at = now + CHECK_SECONDS
                subscription.check()

    def _close(self, subscription: Subscription | None) -> None:
        try:
            if subscription is not None:
                subscription.close()
        except Exception as error:
            logger.debug("the subscription could not be closed: %s", error)
