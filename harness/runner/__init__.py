"""`rlharness run`: collect units, pack them onto GPUs, supervise each attempt, keep every outcome.

run.py            a run from its options to its exit code     collection/  which files and tests there are
planning.py       units, expected durations, a schedule       schedule/    GPUs, leases, packing, bounds: pure
dispatcher.py     starts units as GPUs become free            sessions/    the pytest processes in which tests run
run_context.py    what the parts of one run share             attempts/    one unit on its lease, up to its outcome
gpu_memory.py     peak of GPU memory of each unit             reruns/      retries, the rest of a file, --last-failed
network_pins.py   whether units need the network              records/     history, events of past runs, comparisons

What all of them speak of: units.py, outcomes.py, events.py, options.py, selections.py.
"""
