"""The addresses at which a process listens, as the tables of /proc/net have them."""

import os
from pathlib import Path

LISTENING, LOOPBACK = "0A", "0100007F"


def listening_addresses() -> set[str]:
    """The addresses at which this process listens, as the kernel writes them."""
    own = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)}
    tables = (line.split() for kind in ("tcp", "tcp6") for line in Path("/proc/net", kind).read_text().splitlines()[1:])
    return {words[1] for words in tables if words[3] == LISTENING and f"socket:[{words[9]}]" in own}
