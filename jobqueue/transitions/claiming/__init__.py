"""READY -> PROCESSING: which jobs a claim takes, and the statements that take them.

Only `transitions` and the children of a worker import this package. claimer.Claimer is the one way to claim.
"""
