"""make chaos: the promises of docs/explanation/guarantees.md under all faults at once, from a seed.

`run` is the command line, `trial` carries out one seed, `faults` breaks things, `load` and `tasks` are what goes on
meanwhile, and `checks` judges by what jobs, producers and triggers of the database have written.
"""
