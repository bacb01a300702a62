"""What is read of a trace are regular files: a pipe would be waited for, a device need not end."""

import errno
import stat
from pathlib import Path


def check_regular(path: Path) -> None:
    """OSError where there is no file, or another thing than a regular one."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
