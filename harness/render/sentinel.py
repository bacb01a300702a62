"""Output of `rlharness trace --sentinel` after the program: what the sentinel found, and where its bundles are."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.bits.text import one_line, path_text
from harness.recording.sentinel.sentinel_report import Finding, finding_line


def sentinel_lines(findings: Iterable[tuple[Path, Finding]]) -> Iterator[str]:
    """Yield two lines for each (bundle, finding)."""
    for bundle, finding in findings:
        yield one_line(finding_line(finding))
        yield f"  bundle: {shlex.quote(path_text(bundle))}"
