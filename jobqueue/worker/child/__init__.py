"""A child process of a worker: it claims, hands jobs to its threads, and writes how they ended.

Only the supervisor starts it. The main thread claims, the settler's threads write.
"""
