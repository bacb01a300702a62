"""The pytest processes in which tests run. Some modules live in a user's pytest, the others start and feed it.

Outside pytest: suite.py             starts and asks the session   In pytest: collected_session.py  the one session
                pytest_command.py    how pytest is called                     forked_tests.py       `--isolate test`
                combined_coverage.py coverage of all processes                own_coverage.py       coverage
                                                                              xdist_fixtures.py     `worker_id`
                                                                              ties.py, threads_before.py
"""
