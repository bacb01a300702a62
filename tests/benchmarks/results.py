"""The latest result of each benchmark, in `results.json`, and the tables of README.md that are made of it.

    python -m tests.benchmarks.results        # write the tables into README.md

A row has a section of the page, the benchmark, what is measured, target, value, verdict (`met`, `missed` or empty),
date, machine, versions, and a note. The note of a missed target is its reason, and stands below the tables.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).with_name("README.md")
HEAD = "| benchmark | measured | target | result | date |\n|---|---|---|---|---|"
TABLE = re.compile(r"(<!-- results: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = Mapping[str, str]


def rows() -> list[Row]:
    """Return the rows, in the order of the file."""
    found: list[Row] = json.loads(RESULTS.read_text("utf-8"))
    return found


def line(row: Row) -> str:
    """Return the line of a row in the table of its section; a missed target is in bold type."""
    value = f"**{row['value']}, missed**" if row["verdict"] == "missed" else row["value"]
    return f"| {row['benchmark']} | {row['measured']} | {row['target']} | {value} | {row['date']} |"


def rendered(page: str, rows: list[Row]) -> str:
    """Return the page with the table of each section, and the reasons of missed targets, written anew."""

    def fill(match: re.Match[str]) -> str:
        if match[2] == "missed":
            missed = (row for row in rows if row["verdict"] == "missed" and row["note"])
            text = "\n".join(f"- {row['benchmark']}, {row['measured']}: {row['note']}" for row in missed)
        else:
            text = "\n".join([HEAD, *(line(row) for row in rows if row["section"] == match[2])])
        return f"{match[1]}{text}\n{match[3]}"

    return TABLE.sub(fill, page)


def with_row(rows: list[Row], row: Row) -> list[Row]:
    """Return the rows with this one in the position of the same benchmark and measure, or at the end."""
    keys = [(each["benchmark"], each["measured"]) for each in rows]
    key = (row["benchmark"], row["measured"])
    at = keys.index(key) if key in keys else len(rows)
    return [*rows[:at], row, *rows[at + 1 :]]


def record(row: Row) -> None:
    """Store a row, and write the page."""
    new = with_row(rows(), row)
    RESULTS.write_text(json.dumps(new, indent=1) + "\n", "utf-8")
    PAGE.write_text(rendered(PAGE.read_text("utf-8"), new), "utf-8")


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text("utf-8"), rows()), "utf-8")
