"""The runtime: a supervisor, a monitor that renews leases, and child processes that run jobs.

Each kind of process has a room, and `shared` holds what they share. supervisor handles the operator's signals, and
starts and replaces the monitor and the children.
"""
