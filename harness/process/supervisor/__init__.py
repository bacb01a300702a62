"""One small process per attempt, which owns that attempt's process tree and ends it for certain.

It imports the standard library alone (no asyncio, no dataclasses), and is forked from a process that has imported it
already: one costs about 8 ms of processor time and 2.5 MB. Only this package sends signals.

    runner ──stdin: the order, then "cancel"/"kill"──▶ supervisor ──fork, exec──▶ leader (pytest) ──▶ ...
           ◀─stdout: JSON lines started/terminating/finished──

    fork_server  the process that supervisors are forked from, and the runner's side of it
    main         the life of one attempt: starting, running, terminating, killing, done or unkillable
    containment  the three means of holding a tree: control group, PID namespace, subreaper
    deadlines    pure: which limit has passed, from the report's lines and the time
    process_tree reading /proc
    stacks       what every process of the tree was doing, seen from outside
    syscalls     prctl, unshare, setns and mount through ctypes

End of file on stdin means that the runner is gone: the tree is killed at once.
"""
