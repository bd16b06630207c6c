"""Dead letters in groups of the same failure, notes on failures, and redrives."""
