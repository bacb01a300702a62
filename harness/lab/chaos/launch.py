"""Becomes a program that has less of the machine: python launch.py NICE CORES PROGRAM ARGUMENT...

0 cores are all of them. The standard library only: it runs in whatever Python there is, before the program's own.
"""

import os
import sys


def main(argv: list[str]) -> None:
    """Lower the priority, take the first cores, and be the program: same process, same files, same environment."""
    nice, num_cores, *command = argv
    if int(nice):
        os.nice(int(nice))
    if int(num_cores):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(num_cores)])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
