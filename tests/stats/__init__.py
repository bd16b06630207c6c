"""Statistics: what is counted, written, added up and read."""
