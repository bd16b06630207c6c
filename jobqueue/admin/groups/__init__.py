"""The list of groups and workflows, the page of one, and the drawing of a workflow."""
