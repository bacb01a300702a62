"""Faults that other trainers had, put into this engine one at a time: which are found, how soon, by which check, where.

    catalogue ─▶ a fault ─▶ entry: the engine, patched while it runs ─▶ trace ─▶ trials: the checks, in order ─▶ table

Nothing of the tree is edited. `python -m tests.benchmarks.mutations` carries it out, or one collection with `--of`,
and `--write` puts the tables into harness/DESIGN.md. Runs have processes of their own for the faults that lie in
ranks that train together: a fault is put into each of them when it opens its recorder.
"""
