"""What is kept of runs, and what is learned from it.

history.py         durations, outcomes and needs of files    run_record.py      a recorded run as the pages show it
history_file.py    the SQLite file of the history            timeline.py        what ran where
history_keeper.py  keeps the events of a run in the history  merging.py         several runs as one
collected_file.py  what pytest collected from a file         trends.py          a file or test over the runs
recorded_run.py    the events of a past run                  stats.py           the state of a run, from its events
"""
