"""Charts as SVG, drawn on the server: they need no script, have a table beside them, and follow the admin's theme."""

from jobqueue.admin.charts.bars import bars
from jobqueue.admin.charts.frame import Series
from jobqueue.admin.charts.lines import lines
from jobqueue.admin.charts.sparkline import sparkline

__all__ = ["Series", "bars", "lines", "sparkline"]
