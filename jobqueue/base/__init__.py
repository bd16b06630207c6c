"""What all rooms use: checks of arguments, durations, the JSON codec, and the two Djangos. No database."""
