"""What all pages share: read-only lists and pages, values as text, verbs on rows, and the history."""
