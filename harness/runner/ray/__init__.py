"""Runs on the nodes of a Ray cluster: `rlharness run --ray`.

    run: cluster.py ── an order ──▶ Ray task: task.py ──▶ node.py ──▶ supervisor ──▶ pytest
                    ◀── items: on, grown, terminating, end ──┘

The run keeps its own order and its own count of free GPUs. Ray holds the GPUs, starts one task for each attempt, and
carries its items. It never ends a test: the supervisor does, when the worker's end of a pipe closes.
"""
