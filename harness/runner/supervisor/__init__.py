"""One small process per attempt, which owns that attempt's process tree and ends it for certain.

It is started as `python -I -S` and imports the standard library alone (no asyncio, no dataclasses): one
costs about 20 ms of processor time. This package is the one place that sends signals.

    runner ──stdin: the order, then "cancel"/"kill"──▶ supervisor ──fork, exec──▶ leader (pytest) ──▶ ...
           ◀─stdout: JSON lines started/terminating/finished──

    main         the life of one attempt: starting, running, terminating, killing, done or unkillable
    containment  the three means of holding a tree: control group, PID namespace, subreaper
    deadlines    pure: which limit has passed, from the report's lines and the time
    process_tree reading /proc
    stacks       what every process of the tree was doing, seen from outside
    syscalls     prctl, unshare, setns and mount through ctypes

End of file on stdin means that the runner is gone: the tree is killed at once.
"""
