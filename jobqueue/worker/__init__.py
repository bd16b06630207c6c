"""The runtime: a supervisor, a monitor that renews leases, and child processes that run jobs.

Each kind of process has a room, and `shared` holds what they share. status writes a line about all children to the log
when the operator sends SIGUSR1.
"""
