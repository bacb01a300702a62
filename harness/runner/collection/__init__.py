"""Which units a run has: test files as pytest collects them (`collect.py`), groups and parts of files (`units.py`)."""
