"""The runtime: a supervisor, a keeper that renews leases, and child processes that run jobs."""
