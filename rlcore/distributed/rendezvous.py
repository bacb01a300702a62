"""The store by which the ranks of a group find each other. The controller holds it: its port is never free again."""

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without __all__


def listening_store(host: str, timeout: timedelta) -> TCPStore:
    """Return a store that listens on a free port of this address alone; torch's own would listen on all addresses."""
    with socket.create_server((host, 0)) as listening:
        port = listening.getsockname()[1]
        return TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listening.detach()
        )
