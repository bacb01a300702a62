"""The files that a collecting child has written: what it printed, and what it found."""

import os
from pathlib import Path
from typing import Any

from harness.bits.errors import CollectionError
from harness.bits.files import open_regular, read_text
from harness.process.program_output import json_objects

MAX_OUTPUT_BYTES = 1 << 16
UNWRITABLE = "the list of test files cannot be written"
"""Begin of pytest's error where the child cannot write what it has found."""


def output_of(directory: Path) -> str:
    """Return the end of a child's output, and the stacks of its threads if it exceeded its limit."""
    texts = []
    for name in ("output.log", "stacks.txt"):
        try:
            with open_regular(directory / name) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_OUTPUT_BYTES))
                texts.append(file.read(MAX_OUTPUT_BYTES).decode(errors="replace").strip())
        except FileNotFoundError:
            pass
        except OSError as error:
            texts.append(f"{name} cannot be read: {error.strerror}")
    return "\n".join(text for text in texts if text)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines that a discovery child wrote, which may have been killed at any byte.

    A conftest may have written between them: what is no JSON object is left out.

    Raises CollectionError if the file is no regular file any more.
    """
    try:
        text = read_text(path, errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CollectionError(
            f"the test files cannot be listed: {path.name} cannot be read: {error.strerror}",
            remedy="keep conftest files from changing the run's files",
        ) from None
    return json_objects(text.rpartition("\n")[0])
