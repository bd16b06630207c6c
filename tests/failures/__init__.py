"""The causes of exceptions, and the fingerprints of failures."""
