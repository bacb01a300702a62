"""Whether a checkpoint is whole, by the checksums that it brings along; whose it is makes no difference.

checksums.json: {"files": {PATH: {"num_bytes": N, "xxh3_128": DIGEST}}, ...}, as rlcore writes it

One without such a file is taken for whole: what is in it its entry alone knows.
"""

import json
from pathlib import Path

from xxhash import xxh3_128

from harness.bits.files import MALFORMED, MAX_JSON_BYTES, open_regular, read_regular
from harness.bits.text import count, one_line

CHECKSUMS = "checksums.json"
_CHUNK_BYTES = 2**22


def damage_of(checkpoint: Path) -> str:
    """What is wrong with a checkpoint: the first file that is not as it was written; empty where nothing is known."""
    try:
        files = json.loads(read_regular(checkpoint / CHECKSUMS, max_bytes=MAX_JSON_BYTES, follows_links=True))["files"]
        for name, expected in files.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                return f"{CHECKSUMS} names a file outside: {one_line(name)}"
            if problem := _damage_of_file(checkpoint / name, expected["num_bytes"], expected["xxh3_128"]):
                return f"{name} {problem}"
    except FileNotFoundError:
        return ""
    except (OSError, *MALFORMED) as error:
        return f"{CHECKSUMS} cannot be read: {error!r:.100}"
    return ""


def _damage_of_file(path: Path, num_bytes: int, digest: str) -> str:
    """Its length first: what was cut off is found without reading the rest."""
    try:
        found = path.stat().st_size
        if found != num_bytes:
            return f"has {count(found, 'byte')}, and had {num_bytes:,}"
        return "" if _digest(path) == digest else "has other bytes than those that were written"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _digest(path: Path) -> str:
    digest = xxh3_128()
    with open_regular(path, follows_links=True) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
