"""Prompts from a file: JSON lines or parquet, with a column `prompt` of texts or messages; others are for rewards."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.bits.files import open_regular, parse_object, read_regular
from rlcore.data.rewards import GIVEN, STATE
from rlcore.errors import InvalidValueError
from rlcore.seeds import permutation
from rlcore.types import Messages

PROMPT = "prompt"
JSON_LINES, PARQUET = (".jsonl", ".ndjson", ".json"), (".parquet",)
MAX_BYTES = 1 << 32
BATCH_ROWS = 256
LEGAL = f"prompts of at most {MAX_BYTES >> 30} GiB"


class Row(NamedTuple):
    """A prompt, before it is tokens."""

    prompt: str | Messages
    columns: Mapping[str, Any]
    place: str
    """Of it in its file, for messages."""


def read_rows(path: Path) -> list[Row]:
    """Every row of a file, in its order.

    Raises InvalidValueError, with file, line and column, for what cannot be read, a prompt that is empty or neither,
    and rows that differ in their columns.
    """
    readers = {**dict.fromkeys(JSON_LINES, _json_lines), **dict.fromkeys(PARQUET, _parquet)}
    if path.suffix not in readers:
        raise InvalidValueError(f"{path} is called {path.suffix or 'nothing'}", legal=", ".join(readers))
    if not path.is_file():
        raise InvalidValueError(f"{path} is not a file", legal="prompts in JSON lines or parquet: task.path")
    rows: list[Row] = []
    for place, values in readers[path.suffix](path):
        rows.append(_row(place, values))
        if rows[-1].columns.keys() != rows[0].columns.keys():
            other = sorted(rows[-1].columns.keys() ^ rows[0].columns.keys())
            raise InvalidValueError(
                f"{place}: column {other[0]!r} is not in every row", remedy="write null where there is no value"
            )
    if not rows:
        raise InvalidValueError(f"{path} holds no prompt", legal=f"one or more, in a column {PROMPT!r}")
    if taken := sorted(rows[0].columns.keys() & {*GIVEN, STATE}):
        raise InvalidValueError(f"a column {taken[0]!r}", legal=f"any but {', '.join((*GIVEN, STATE))}")
    return rows


def split_rows(path: Path, num_prompts: int | None, num_heldout: int, seed: int) -> tuple[list[Row], list[Row], int]:
    """Return rows to train on, all that are not held out by default, rows held out, and how many are neither.

    They are in the order of their keys; rows of one prompt are never on both sides. Raises InvalidValueError where
    there are too few, and as read_rows does.
    """
    by_prompt: dict[str, list[Row]] = {}
    for row in read_rows(path):
        by_prompt.setdefault(row.prompt if isinstance(row.prompt, str) else json.dumps(row.prompt), []).append(row)
    texts, num_rows = list(by_prompt), sum(map(len, by_prompt.values()))
    heldout: list[Row] = []
    train: list[Row] = []
    for index in permutation(len(texts), "task", "file", seed):
        (heldout if len(heldout) < num_heldout else train).extend(by_prompt[texts[index]])
    if len(train) < (num_prompts or 1):
        raise InvalidValueError(
            f"{path} has {num_rows} rows of {len(texts)} prompts, and {num_prompts or 1} + {num_heldout} are wanted",
            legal=f"task.num_prompts + task.num_heldout at most {num_rows}",
        )
    train, heldout = train[:num_prompts], heldout[:num_heldout]
    return train, heldout, num_rows - len(train) - len(heldout)


def _row(place: str, values: Mapping[str, Any]) -> Row:
    prompt = values.get(PROMPT)
    messages = prompt if isinstance(prompt, list) else []
    are_messages = all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in messages)
    if not prompt or not isinstance(prompt, str | list) or not are_messages:
        raise InvalidValueError(
            f"{place}: column {PROMPT!r} is {prompt!r:.60}" if PROMPT in values else f"{place}: no column {PROMPT!r}",
            legal='text that is not empty, or messages: [{"role": "user", "content": "..."}]',
        )
    return Row(prompt, {name: value for name, value in values.items() if name != PROMPT}, place)


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        content = read_regular(path, max_bytes=MAX_BYTES, follows_links=True)
        for number, line in enumerate(content.splitlines(), start=1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            try:
                values = parse_object(line)
            except ValueError as error:  # of JSON, or of UTF-8
                raise InvalidValueError(f"{place}: {error}", legal='a JSON object a line: {"prompt": "..."}') from error
            yield place, values
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be read: {error.strerror}", legal=LEGAL) from error


def _parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidValueError(
            f"{path} needs pyarrow", remedy="pip install 'rlharness[parquet]', or write JSON lines"
        ) from error
    number, num_bytes = 0, 0
    try:
        with open_regular(path, follows_links=True) as file:
            # A small file can hold rows without end: they are counted as they are unpacked.
            for batch in parquet.ParquetFile(file).iter_batches(BATCH_ROWS):
                num_bytes += batch.nbytes + BATCH_ROWS
                if num_bytes > MAX_BYTES:
                    raise ValueError(f"it holds more than {MAX_BYTES:,} bytes")
                for values in batch.to_pylist():
                    yield f"{path}, row {number}", values
                    number += 1
    except (OSError, ValueError, ArithmeticError, pyarrow.ArrowException) as error:
        raise InvalidValueError(f"{path} cannot be read: {error}", legal="a parquet file") from error
