"""Gates: what jobs wait for besides their ordering key: slots and rates of tasks and keys, breakers, paused tasks.

The claim asks admit() before it stamps jobs, so no limit can be passed whatever else goes wrong. Jobs that may not
start wait behind a closed gate, unseen by claims, until open_waiting() opens as many as may start. Whatever a crash
leaves undone, a sweep repairs.
"""
