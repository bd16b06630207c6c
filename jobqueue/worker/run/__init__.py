"""One job in a thread or on the event loop of a child: threads, coroutines, time limits, clean-up after a run.

Imported by worker.child; writes no job state itself.
"""
