"""The runtime: a supervisor, a monitor that renews leases, and child processes that run jobs."""
