"""Alarms: figures of queues and workers that have reached their thresholds. firing() lists them.

The monitors of workers and reap_leases look every 15 seconds, one of them for all, and tell who stands in
JOBQUEUE["ALARMS"]["NOTIFY"]. State is in rows of job_alarm, so that it survives restarts.
"""

from jobqueue.alarms.alarm import Alarm, firing

__all__ = ["Alarm", "firing"]
