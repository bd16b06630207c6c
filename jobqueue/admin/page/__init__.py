"""What all pages share: read-only lists and pages, values as text, tables, charts, verbs on rows, and the history."""
