"""Exit codes of every command: pytest's own from 0 to 5, ours from 10 on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of the process; the order in which one wins over another is `worst_of`."""

    OK = 0
    TESTS_FAILED = 1
    INTERRUPTED = 2
    INTERNAL_ERROR = 3
    USAGE_ERROR = 4
    NOTHING_COLLECTED = 5
    DIVERGED = 10
    NOT_COMPARABLE = 11
    INCOMPLETE_RECORDING = 12
    GPU_QUARANTINED = 13
    UNITS_NOT_RUN = 14
