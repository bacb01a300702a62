"""A session of Ray for a run: one of its own on this machine, or a cluster that others operate."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rlcore.errors import InvalidValueError

NICENESS = "RAY_worker_niceness"
"""Variable of Ray for how far its workers stand back for other processes: by default so far that they starve."""

CONNECT_S = 10.0
"""For an address to answer."""


@contextmanager
def ray_session(address: str, *, num_cpus: int) -> Iterator[None]:
    """Hold a session: the one that this process has joined, or that of `address`, or a local one if it is empty.

    A local session counts at least `num_cpus` CPUs, so that as many actors run on any machine. What was started or
    joined here ends with the context. Raises InvalidValueError if there is no cluster at the address.
    """
    if ray.is_initialized():
        yield
        return
    _check_listens(address)
    try:
        if address:
            ray.init(address=address, log_to_driver=False)
        else:
            cpus = max(num_cpus, os.cpu_count() or 1)
            os.environ.setdefault(NICENESS, "0")
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    except ConnectionError as error:
        raise InvalidValueError(
            f"deployment.address {address!r}: {error}",
            legal="the address of a cluster of Ray that runs (host:6379), auto, or empty for a local one",
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_listens(address: str) -> None:
    """Raise InvalidValueError if nothing listens at HOST:PORT: Ray itself would wait for minutes."""
    host, separator, port = address.rpartition(":")
    if not separator or "://" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InvalidValueError(
            f"deployment.address {address!r}: {error}",
            legal="the address of a cluster of Ray that runs (host:6379), auto, or empty for a local one",
            remedy="ray status --address ADDRESS shows whether it runs",
        ) from None
