"""Dead letters: FAILED jobs, grouped by what went wrong, and brought back by redrives.

listing reads the groups, noting writes what people know of them. recording has redrive(), redrives() and stop().
Workers carry redrives out: runs.redrive_steps. Used by the project's own code, the admin and commands.
"""

from jobqueue.dead_letters.listing import DeadLetters, fingerprints
from jobqueue.dead_letters.noting import Note, note, notes
from jobqueue.dead_letters.recording import Redriven, redrive, redrives, stop

__all__ = ["DeadLetters", "Note", "Redriven", "fingerprints", "note", "notes", "redrive", "redrives", "stop"]
