"""The store by which the ranks of a group find each other. The controller holds it: its port is never free again."""

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without __all__


def listening_store(host: str, timeout: timedelta) -> TCPStore:
    """Return a store that listens on a free port of this address alone; torch's own would listen on all addresses."""
    with socket.create_server((host, 0)) as listening:
        port = listening.getsockname()[1]
        return TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listening.detach(),
        )


class Rendezvous:
    """A store of torch.distributed that listens as long as this object lives."""

    def __init__(self, host: str, timeout_s: float = 300.0) -> None:
        """Listen on a free port of this address alone."""
        self._store: TCPStore | None = listening_store(host, timedelta(seconds=timeout_s))
        self.address: tuple[str, int] = (host, self._store.port)

    def close(self) -> None:
        """Stop listening."""
        self._store = None
