"""One small process per slot, which owns the process tree of one attempt after another and ends it for certain.

It imports the standard library alone (no asyncio, no dataclasses).

    runner ──stdin: an order, then "cancel"/"kill"──▶ supervisor ──fork, exec──▶ leader (pytest) ──▶ ...
           ◀─stdout: JSON lines taken/terminating/finished──

    main         the life of one attempt: starting, running, terminating, killing, done or unkillable
    fork_server  for supervisors that are forks of a process, whose imports their leaders share
    containment  the three means of holding a tree: control group, PID namespace, subreaper
    deadlines    pure: which limit has passed, from the report's lines and the time
    process_tree reading /proc
    stacks       what every process of the tree was doing, seen from outside
    syscalls     prctl, unshare, setns and mount through ctypes

End of file on stdin means that the runner is gone: the tree is killed at once.
"""
