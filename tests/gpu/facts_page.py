"""Make a dated page of what `settle.sh` has found: `python tests/gpu/facts_page.py OUT [--into PAGE.md]`.

OUT is the directory that it was given: facts.jsonl, and the output of each command, whose last line the page quotes.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_QUOTED_CHARS = 160


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the facts of a file; a line that a killed process has cut short is left out."""
    found = []
    for line in file.read_text("utf-8", errors="replace").splitlines():
        try:
            read = json.loads(line)
        except ValueError:
            continue
        if isinstance(read, dict):
            found.append(read)
    return found


def page_of(lines: Sequence[Mapping[str, Any]], logs: Mapping[str, str]) -> str:
    """Return the page: the machine and the date, a table of commands, and the facts of each part."""
    heads = [line for line in lines if "date" in line]
    head = heads[-1] if heads else {}
    gpu = next((str(line["value"]) for line in lines if line.get("fact") == "GPU 0 name"), "no GPU")
    texts = [
        f"# GPU facts, {str(head.get('date', 'undated'))[:10]}",
        f"{gpu}; commit {head.get('commit') or 'unknown'}; device {head.get('device', 'unknown')}.",
        "## Commands",
        _table(
            ("stage", "command", "result", "seconds", "last line of its output"),
            [
                (
                    line["stage"],
                    f"`{line['command']}`",
                    _result(line),
                    line.get("seconds", ""),
                    _quoted(logs.get(line["command"], "")),
                )
                for line in lines
                if "command" in line
            ],
        ),
    ]
    for part in dict.fromkeys(line["part"] for line in lines if "part" in line):
        facts = [(line["fact"], _quoted(json.dumps(line["value"]))) for line in lines if line.get("part") == part]
        texts += [f"## {part}", _table(("fact", "value"), facts)]
    return "\n\n".join(texts) + "\n"


def _result(line: Mapping[str, Any]) -> str:
    if "not_run" in line:
        return f"not run: {line['not_run']}"
    code = line.get("exit_code")
    return {0: "passed", 124: "exceeded its limit", 137: "killed at its limit"}.get(code, f"exit code {code}")  # type: ignore[arg-type]


def _quoted(text: str) -> str:
    """Return the last line of a text as code, cut short; empty for no text."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    last = lines[-1].strip().replace("`", "'").replace("|", "/")
    return f"`{last if len(last) <= MAX_QUOTED_CHARS else last[: MAX_QUOTED_CHARS - 1] + '…'}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--into", type=Path, help="file for the page, in place of standard output")
    arguments = parser.parse_args()
    file = arguments.out / "facts.jsonl"
    if not file.exists():
        print(f"{file} does not exist: run tests/gpu/settle.sh {arguments.out} first", file=sys.stderr)
        return 4
    logs = {path.stem: path.read_text("utf-8", errors="replace") for path in arguments.out.glob("*.log")}
    page = page_of(read_lines(file), logs)
    if arguments.into:
        arguments.into.write_text(page, "utf-8")
    else:
        print(page, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
