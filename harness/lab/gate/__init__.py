"""`rlharness gate`: what a change does to training runs: equal, numerics only, behaviour; and what they cost.

plan.py      what is compared with what            change.py    two sides of a scenario and what they are, pure
sides.py     the runs, A B A B                     costs.py     seconds and memory beside their noise, pure
golden.py    curves that are committed             policy.py    what of all that fails, pure
rounding.py  how far apart the first tensors are   recorded.py  what only one side records
result.py    a gate that has ended                 command.py   from arguments to exit code
"""
