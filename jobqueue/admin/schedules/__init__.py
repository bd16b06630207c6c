"""The list of schedules, the page of a schedule, and the form that makes and edits one."""
