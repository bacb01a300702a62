"""Code lines of each package against tests/size.json: `python tests/size.py [--write]`.

A code line holds a token that is neither a comment nor part of a docstring. A package above its budget may not grow,
one below it may grow up to it; the table has the most that each may have. `--write` lowers it to what there is.
"""

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "size.json"
TOPS = ("harness", "rlcore", "scenarios", "tests")
NO_CODE = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}


def code_lines(text: str) -> int:
    """Return the number of lines of a module that hold code."""
    texts = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def package_of(path: str) -> str:
    """Return the package whose budget a file counts for: one below harness or rlcore, or the top directory."""
    first, *middle, _ = path.split("/")
    return f"{first}/{middle[0]}" if middle and first in ("harness", "rlcore") else first


def sizes() -> Counter[str]:
    """Return the code lines of each package of this checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *TOPS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    found = Counter[str]()
    for path in listed.splitlines():
        if path.endswith(".py") and (ROOT / path).is_file():
            found[package_of(path)] += code_lines((ROOT / path).read_text("utf-8"))
    return found


def main() -> int:
    """Compare, or write the table."""
    now, table = sizes(), json.loads(TABLE.read_text("utf-8"))
    if sys.argv[1:] == ["--write"]:
        for name, row in table.items():
            row["most"] = max(row["budget"], min(row["most"], now[name]))
        TABLE.write_text(json.dumps({name: row for name, row in table.items() if now[name]}, indent=1) + "\n", "utf-8")
    over = sorted(name for name in now if now[name] > table.get(name, {"most": 0})["most"])
    for name in sorted(now):
        most = table.get(name, {"most": 0})["most"]
        print(f"{name:24} {now[name]:6} of {most:6}{'  TOO LARGE' if name in over else ''}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
