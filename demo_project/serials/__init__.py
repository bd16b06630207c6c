"""Serial numbers that must be sold once: six ways to do it, raced against each other."""
