"""The logs of the Ray clusters that an attempt has started."""

import shutil
from pathlib import Path

MAX_RAY_LOGS_BYTES = 64 * 2**20


def keep_ray_logs(ray: Path, destination: Path, limit_bytes: int = MAX_RAY_LOGS_BYTES) -> None:
    """Copy the logs of the Ray clusters under `ray` to `destination`, smallest files first, up to a limit.

    Links are not followed: `session_latest` is one, and a test may have made others. Raises OSError for a full disk.
    """
    sessions = [path for path in ray.glob("session_*/logs") if not path.parent.is_symlink() and not path.is_symlink()]
    found = [path for logs in sessions for path in logs.rglob("*") if path.is_file() and not path.is_symlink()]
    total_bytes = 0
    for size_bytes, path in sorted((path.stat().st_size, path) for path in found):
        total_bytes += size_bytes
        if total_bytes > limit_bytes:
            break
        target = destination / path.relative_to(ray)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
