"""READY -> PROCESSING: which jobs a claim takes, and the statements that take them.

claimer.Claimer is the only way to claim; candidates says which jobs, in which order. Imported by the
transitions and by the children of a worker, where it runs.
"""
