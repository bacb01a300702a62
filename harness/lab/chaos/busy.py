"""Keeps cores busy until it is killed: python busy.py NUM_PROCESSES. The standard library only."""

import os
import sys


def main(num_processes: int) -> None:
    """This process and its children, each of which would take a core for itself; they are ended as one tree."""
    for _ in range(num_processes - 1):
        if not os.fork():
            break
    number = 1
    while True:
        number = number * 6364136223846793005 % 2**64


if __name__ == "__main__":
    main(int(sys.argv[1]))
