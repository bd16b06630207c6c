"""Dead letters in groups."""
