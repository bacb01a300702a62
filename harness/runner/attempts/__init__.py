"""One unit on its lease, from its directories to its one outcome.

unit_run.py        the attempt, step by step           shared_watch.py   memory of GPUs that several units share
attempt_report.py  what the tests reported             gpu_suspicion.py  GPUs on which unrelated tests fail
report_events.py   the same as events of the run       leaning_check.py  whether a file passes after those before it
lease_end.py       what became of the GPUs             ray_logs.py       logs of Ray that are kept
unit_result.py     the outcome, as a result            memory_sampler.py  memory of GPUs while it runs
"""
