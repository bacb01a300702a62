"""The store by which the ranks of a group find each other. The controller holds it: its port is never free again."""

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without __all__

LOOPBACK = "127.0.0.1"


class Rendezvous:
    """A store of torch.distributed that listens as long as this object lives."""

    def __init__(self, host: str = LOOPBACK, timeout_s: float = 300.0) -> None:
        """Listen on a free port of this address alone."""
        with socket.create_server((host, 0)) as listening:
            port = listening.getsockname()[1]
            self._store: TCPStore | None = TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
                master_listen_fd=listening.detach(),
            )
        self.address: tuple[str, int] = (host, port)

    def close(self) -> None:
        """Stop listening."""
        self._store = None
