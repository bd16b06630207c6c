"""Real files as work: each job examines one Python file."""
