"""The runtime: a supervisor, a monitor that renews leases, and child processes that run jobs.

Each kind of process has a room, and `shared` holds what they share. supervisor handles the operator's signals, and
monitor_process starts and replaces the monitor.
"""
