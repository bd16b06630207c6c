"""Serial numbers that must be sold once, by several strategies that are raced against each other."""
