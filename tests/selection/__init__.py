"""Which tests a run has: the map of statements, what records it, and what chooses by it.

statements.txt has a line for each statement that the product sends in a test. See tests/selection/statement_map.py.
"""
