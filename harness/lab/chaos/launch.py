"""Starts a program with less of the machine, or keeps cores busy until it is killed. The standard library only.

python launch.py NICE CORES PROGRAM ARGUMENT...        0 cores are all of them
python launch.py NUM_PROCESSES
"""

import os
import sys


def main(argv: list[str]) -> None:
    """Lower the priority, take the first cores, and be the program: same process, same files, same environment.

    It runs in whatever Python there is, before the program's own.
    """
    nice, num_cores, *command = argv
    if int(nice):
        os.nice(int(nice))
    if int(num_cores):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(num_cores)])
    os.execvp(command[0], command)


def burn(num_processes: int) -> None:
    """Keep a core busy in this process and each of its children; they are ended as one tree."""
    for _ in range(num_processes - 1):
        if not os.fork():
            break
    number = 1
    while True:
        number = number * 6364136223846793005 % 2**64


if __name__ == "__main__":
    main(sys.argv[1:]) if len(sys.argv) > 2 else burn(int(sys.argv[1]))
