"""One unit on its lease, from its directories to its one outcome.

unit_run.py        the attempt, and the steps after it   gpu_checks.py     what is checked of its GPUs
attempt_spec.py    its order to a supervisor             memory_sampler.py  memory of GPUs while it runs
leaning_check.py   whether a file passes after those before it
"""
