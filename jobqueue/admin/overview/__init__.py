"""The overview: what waits, runs and fails now, on one page. What it reads is kept for a moment for all who look."""
