"""The pytest processes in which tests run. Some modules live in a user's pytest, the others start and feed it.

Outside pytest: pytest_command.py   how pytest is called        In pytest: warm_session.py    a session to fork from
                warm_parent.py      the warm session                       worker_session.py  files one after another
                workers.py          `--isolate worker`                     forked_tests.py    `--isolate test`
                plugin_names.py     plugins, by name
                part_file.py        tests that a process runs              parts.py           some tests of a file
                combined_coverage.py  coverage of all processes            own_coverage.py    coverage of one process
                                                                           shared_cache.py   what failed, for `--lf`
                                                                           xdist_fixtures.py  `worker_id` and the like
                                                                           plugin_facts.py   fixtures of plugins
                                                                           odd_names.py      `test_[1].py` and the like
"""
