"""Faults that other trainers had, planted in this engine one at a time: which means finds each, how soon, and where.

    faults.yaml ─▶ a fault ─▶ entry: the engine, changed while it runs ─▶ trace ─▶ trials: the means, in order

Nothing of the tree is edited. The guard `tests.guards.faults` runs them. Faults of ranks that train together get
processes of their own: the fault is planted in each of them when it opens its recorder.
"""
