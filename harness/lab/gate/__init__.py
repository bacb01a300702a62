"""`rlharness gate`: what a change does to training runs: equal, numerics only, behaviour; and what they cost.

plan.py            what is compared with what        change.py    two sides of a scenario and what they are, pure
sides.py           the runs, A B A B                 rounding.py  how far apart the first tensors are
against_base.py    a scenario beside a revision's    costs.py     seconds and memory beside their noise, pure
against_golden.py  a scenario beside its golden      recorded.py  what only one side records
golden.py          curves that are committed         policy.py    what of all that fails, pure
reasons.py         codes of reasons, with values     result.py    a gate that has ended
"""
