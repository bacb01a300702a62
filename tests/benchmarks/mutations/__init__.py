"""Faults that other trainers had, put into this engine one at a time: which are found, how soon, by which check, where.

    catalogue ─▶ a fault ─▶ entry: the engine, patched while it runs ─▶ trace ─▶ trials: the checks, in order ─▶ table

Nothing of the tree is edited. `python -m tests.benchmarks.mutations` carries it out and `--write` puts the table into
harness/DESIGN.md.
"""
