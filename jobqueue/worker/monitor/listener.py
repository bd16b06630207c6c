"""The keeper's thread that hears rings from other processes and wakes children. Without it they only poll."""

from __future__ import annotations

import logging
import math
import random
import threading
import time

from jobqueue import wakeup as doorbell
from jobqueue.exceptions import NotSupported
from jobqueue.wakeup import QUIET_SECONDS, Bell
from jobqueue.wakeup.base import Ear
from jobqueue.worker.shared.wakeup_pipes import Bells
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

CHECK_SECONDS = 30.0  # silence after which the connection is asked for a sign of life
AWAY_SECONDS = 1.0  # wait between attempts to connect


class Listener:
    """Listens on one connection of its own, for ever."""

    def __init__(self, options: Options, bells: Bells) -> None:
        self._options, self._bells = options, bells
        self._away = False

    def start(self) -> None:
        """Listen in a daemon thread, where there is a messenger and somebody may be idle."""
        if self._options.once or self._options.drain:
            return
        bell = doorbell.bell_of(self._options.database)
        if bell is not None:
            try:
                threading.Thread(target=self._run, args=(bell,), name="listener", daemon=True).start()
            except RuntimeError as error:
                # A keeper that cannot listen still renews leases.
                logger.warning("rings are not heard, workers poll: %s", error)

    def _run(self, bell: Bell) -> None:
        while True:
            ear: Ear | None = None
            try:
                ear = bell.listen()
                self._tell(None)
                # Nobody has heard the rings before it, and a driver that had connected again may have heard some.
                self._bells.ring()
                self._listen(ear)
            except NotSupported as error:
                logger.warning("rings are not heard: %s", error)
                return
            except Exception as error:
                # Whatever a driver raises: a worker that cannot hear still polls.
                self._tell(error)
            finally:
                self._close(ear)
            time.sleep(AWAY_SECONDS * random.uniform(0.5, 1.0))

    def _listen(self, ear: Ear) -> None:
        check_at, again_at = time.monotonic() + CHECK_SECONDS, math.inf
        while True:
            heard = ear.heard(max(0.0, min(check_at, again_at) - time.monotonic()))
            served = [queue for queue in heard if self._options.selection.serves(queue)]
            for _ in served:
                self._bells.ring()
            now = time.monotonic()
            if served:
                again_at = now + QUIET_SECONDS
            elif now >= again_at:
                # Enqueuers may have held rings back meanwhile.
                again_at = math.inf
                self._bells.ring_another()
            if heard:
                check_at = now + CHECK_SECONDS
            elif now >= check_at:
                check_at = now + CHECK_SECONDS
                ear.check()

    def _close(self, ear: Ear | None) -> None:
        try:
            if ear is not None:
                ear.close()
        except Exception as error:
            logger.debug("the doorbell's connection could not be closed: %s", error)

    def _tell(self, error: Exception | None) -> None:
        if error is not None and not self._away:
            logger.warning(
                "the doorbell cannot be heard (%s); trying again, jobs are found by polling meanwhile", error
            )
        elif error is None and self._away:
            logger.info("the doorbell can be heard again")
        self._away = error is not None
