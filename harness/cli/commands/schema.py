"""`rlharness schema`: JSON schemas for editors and validators."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import write_replacing
from harness.bits.text import path_text
from harness.cli.schemas import file_name, make_schema, schema_names
from harness.process.invocation import Invocation
from harness.render.console import show


def run_schema(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness schema`: list the names, print one schema, or write one or all into a directory."""
    name, directory = arguments["name"], arguments["out"]
    if directory is not None:
        texts = {file_name(name): _text(name, invocation.cwd)} if name else _all_texts(invocation)
        for path in _write(invocation.cwd / directory, texts):
            show(str(path))
    elif name:
        show(_text(name, invocation.cwd).removesuffix("\n"))
    else:
        names_and_texts = schema_names(invocation.cwd)
        width = max(map(len, names_and_texts))
        show("\n".join(f"{each:{width}}  {text}" for each, text in names_and_texts.items()))
    return ExitCode.OK


def _all_texts(invocation: Invocation) -> dict[str, str]:
    """Return the text of every schema by the name of its file; an entry that has none is noted."""
    texts = {}
    for name in schema_names(invocation.cwd):
        try:
            texts[file_name(name)] = _text(name, invocation.cwd)
        except UsageError as error:
            invocation.note(f"note: no schema of {name}: {error.what}")
    return texts


def _text(name: str, cwd: Path) -> str:
    return json.dumps(make_schema(name, cwd), indent=2, ensure_ascii=False) + "\n"


def _write(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_replacing(directory / name, text)
    except OSError as error:
        raise UsageError(
            f"the schemas cannot be written to {path_text(directory)} ({error.strerror})",
            legal="a directory that can be written to",
            remedy="change --out",
        ) from None
    return [directory / name for name in texts]
