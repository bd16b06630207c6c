"""What the processes of a worker share: the scoreboard in shared memory, wake-up pipes, options, process tools.

Imported by the supervisor, the monitor and the children; imports nothing of them.
"""
