"""Whether secrets are removed: always, unless a user typed --no-redact.

An environment variable says so, since the processes that a command starts write as well: recorded programs,
supervisors, workers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NO_REDACT = "RLHARNESS_NO_REDACT"
"""`1`: secrets stay. The command line sets it for --no-redact."""


def keeps_secrets() -> bool:
    """Return whether --no-redact leaves secrets in what this process prints and writes."""
    return os.environ.get(NO_REDACT) == "1"


@contextmanager
def secrets_kept() -> Iterator[None]:
    """Leave secrets in, here and in the processes that start within."""
    before = os.environ.get(NO_REDACT)
    os.environ[NO_REDACT] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_REDACT]
        else:
            os.environ[NO_REDACT] = before
