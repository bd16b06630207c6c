"""Chores: each module has run_once(settings, using=...) -> result; loops are elsewhere."""
