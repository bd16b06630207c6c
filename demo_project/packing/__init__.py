"""Packing: jobs that share a bench with two places, and the bench, which counts from outside how many are there."""
