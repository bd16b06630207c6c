"""The monitor's thread that receives wake-ups from other processes and wakes children, which otherwise only poll."""

from __future__ import annotations

import logging
import math
import random
import threading
import time

from jobqueue import wakeup
from jobqueue.exceptions import NotSupported
from jobqueue.wakeup import QUIET_SECONDS, Notifier
from jobqueue.wakeup.base import Subscription
from jobqueue.worker.shared.wakeup_pipes import WakeupPipes
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

CHECK_SECONDS = 30.0  # silence after which the connection is asked for a sign of life
AWAY_SECONDS = 1.0  # wait between attempts to connect


class Listener:
    """Listens on one connection of its own, for ever."""

    def __init__(self, options: Options, wakeups: WakeupPipes) -> None:
        self._options, self._wakeups = options, wakeups
        self._away = False

    def start(self) -> None:
        """Listen in a daemon thread, where there is a messenger and somebody may be idle."""
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
                self._tell(None)
                # Wake-ups sent before the subscription were lost.
                self._wakeups.wake()
                self._listen(subscription)
            except NotSupported as error:
                logger.warning("wake-ups are not received: %s", error)
                return
            except Exception as error:
                # Whatever a driver raises: without wake-ups a worker still polls.
                self._tell(error)
            finally:
                self._close(subscription)
            time.sleep(AWAY_SECONDS * random.uniform(0.5, 1.0))

    def _listen(self, subscription: Subscription) -> None:
        check_at, again_at = time.monotonic() + CHECK_SECONDS, math.inf
        while True:
            queues = subscription.receive(max(0.0, min(check_at, again_at) - time.monotonic()))
            served = [queue for queue in queues if self._options.selection.serves(queue)]
            for _ in served:
                self._wakeups.wake()
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

    def _tell(self, error: Exception | None) -> None:
        if error is not None and not self._away:
            logger.warning("wake-ups cannot be received (%s); trying again, workers poll meanwhile", error)
        elif error is None and self._away:
            logger.info("wake-ups are received again")
        self._away = error is not None
