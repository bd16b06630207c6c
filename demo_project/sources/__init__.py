"""Real files as work: one job counts and fingerprints one Python file."""
