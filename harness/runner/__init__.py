"""`rlharness run`: collect units, pack them onto GPUs, supervise each attempt, keep every outcome.

run.py            a run: its context, plan and exit code      sessions/    the pytest processes in which tests run
dispatcher.py     starts units as GPUs become free            attempts/    one unit on its lease, up to its outcome
collection/       which files and tests there are             reruns/      retries, the rest of a file, --last-failed
schedule/         GPUs, leases, packing, bounds: pure         records/     history, events of past runs

What all of them speak of: units.py, outcomes.py, events.py, options.py, selections.py.
"""
