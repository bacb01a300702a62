"""Asynchronous GRPO: inference, orchestrator and trainer at the same time, some versions apart, over one directory.

    infer ◀──HTTP: version, tokens, key──▶ orch ──batches/step_N──▶ train
      ▲                                      ▲                        │
      └──────────── broadcasts/step_N ───────┴────────────────────────┘

Bits do not depend on which of them is slow: every draw has a key, a batch names each group once, and weights N+1 are a
function of weights N and batch N. `rlcore.train` is the same on one page, step after step.
"""
