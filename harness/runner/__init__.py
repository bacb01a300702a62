"""`rlharness run`: collect units, pack them onto GPUs, supervise each attempt, keep every outcome.

run.py            a run from its options to its exit code     collection/  which files, tests and commands there are
planning.py       units, expected durations, a schedule       schedule/    GPUs, leases, packing, bounds: pure
dispatcher.py     starts units as GPUs become free            sessions/    the pytest processes in which tests run
run_context.py    what the parts of one run share             attempts/    one unit on its lease, up to its outcome
setup_scripts.py  what runs before its units                  reruns/      retries, the rest of a file, --last-failed
leaning.py        `--leaning`: files that need another        records/     history, events of past runs, comparisons
probing.py        searches that run files again and again
memory_series.py  memory in use on GPUs over time

What all of them speak of: units.py, outcomes.py, events.py, options.py, selections.py.
"""
