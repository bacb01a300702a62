"""Bundles that somebody has changed, checksums and all."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.lab.experiments.bundle import Content, NamedCheckpoint, checksums, open_bundle, write_bundle


def forge(
    bundle: Path,
    path: Path,
    values: Mapping[str, Any],
    members: Mapping[str, bytes] | None = None,
    checkpoint: NamedCheckpoint | None = None,
) -> Path:
    """Write a bundle with other values at `section.key` of its configuration, and with more members."""
    whole = open_bundle(bundle)
    contents: dict[str, Content] = {name: whole.read(name, 2**30) for name in whole.head.members}
    call = json.loads(whole.read("call.json"))
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        call["config"].setdefault(section, {})[key] = value
    contents["call.json"] = json.dumps(call).encode()
    contents |= dict(members or {})
    write_bundle(path, replace(whole.head, members=checksums(contents), checkpoint=checkpoint), contents)
    return path
