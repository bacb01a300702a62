"""What pytest collected from one test file: its need and its tests, as kept between runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bits.files import MALFORMED
from harness.runner.need import Need
from harness.runner.report_file import ListedTest, TestReport

MAX_TEXT = 1 << 20
"""Characters of a file with its tests; of one with more only the need is kept."""
MAX_IMPORTED = 200
"""Top-level modules that are kept for a file."""


@dataclass(frozen=True, slots=True)
class CollectedFile:
    """The need of a file and the tests that pytest selected in it."""

    need: Need
    asks: Mapping[str, Need]
    """Need of each test, by its name in the file, whatever its parameters."""
    tests: tuple[ListedTest, ...] | None
    """Every selected test in order; None where they were too many to be kept."""
    imported: tuple[str, ...] = ()
    """Modules that the file imported."""
    num_deselected: int = 0
    """Tests that pytest's options have left out, of which nothing else is known."""

    @property
    def is_deselected(self) -> bool:
        """Whether pytest's options have left none of its tests."""
        return not self.asks and self.num_deselected > 0

    def lacks_any(self, nodeids: Sequence[str]) -> bool:
        """Return whether some of `nodeids` name none of its tests; False if its tests are not known."""
        tests = self.tests
        return tests is not None and not all(any(is_part(each.nodeid, nodeid) for each in tests) for nodeid in nodeids)

    def need_of(self, nodeids: Sequence[str]) -> Need:
        """Return the need of the tests that `nodeids` name; that of all tests if some name none that is known."""
        named = [[test.need for test in self.tests or () if is_part(test.nodeid, nodeid)] for nodeid in nodeids]
        if not nodeids or not all(named):
            return self.need
        from harness.plugin import merge_needs  # late: it imports pytest, which no other run needs

        return Need.from_json(merge_needs([need.to_json() for needs in named for need in needs]))


UNKNOWN = CollectedFile(Need(), {}, None)
"""A file of whose tests nothing is known."""


def is_part(test: str, nodeid: str) -> bool:
    """Return whether a node id names this test, or a class or function that it is part of."""
    return test == nodeid or test.startswith((f"{nodeid}::", f"{nodeid}["))


def collected_file(report: TestReport) -> CollectedFile | None:
    """Return what the report of a collecting pytest says of its file; None where the file was not collected."""
    if not report.collected or report.file_need is None:
        return None
    return CollectedFile(report.file_need, report.asks, tuple(report.listed), report.imported, report.num_deselected)


def file_text(file: CollectedFile, path: str) -> str:
    """Return a file as JSON, for `parse_file`."""
    needs: dict[Need, int] = {}
    ties: dict[str, int] = {}
    tests = [
        [
            each.nodeid.removeprefix(path),
            needs.setdefault(each.need, len(needs)),
            [ties.setdefault(tie, len(ties)) for tie in each.ties],
        ]
        for each in file.tests or ()
    ]
    data: dict[str, Any] = {
        "need": file.need.to_json(),
        "asks": {test: needs.setdefault(need, len(needs)) for test, need in file.asks.items()},
        "needs": [need.to_json() for need in needs],
        "ties": list(ties),
        "tests": None if file.tests is None else tests,
        "deselected": file.num_deselected,
        "imported": list(dict.fromkeys(name.partition(".")[0] for name in file.imported))[:MAX_IMPORTED],
    }
    text = json.dumps(data, separators=(",", ":"))
    return text if len(text) <= MAX_TEXT else json.dumps({**data, "tests": None})


def parse_file(text: object, path: str) -> CollectedFile | None:
    """Return the file that `file_text` wrote; None for anything else."""
    if not isinstance(text, bytes) or len(text) > 2 * MAX_TEXT:
        return None
    try:
        data = json.loads(text)
        needs = [_need(each) for each in data["needs"]]
        ties = [_text(each) for each in data["ties"]]
        tests = None
        if data["tests"] is not None:
            tests = tuple(
                ListedTest(path + _text(name), needs[need], tuple(ties[tie] for tie in of_test))
                for name, need, of_test in data["tests"]
            )
        asks = {test: needs[need] for test, need in data["asks"].items()}
        imported = tuple(_text(each) for each in data["imported"])
        return CollectedFile(_need(data["need"]), asks, tests, imported, int(data["deselected"]))
    except MALFORMED:
        return None


def _need(data: dict[str, Any]) -> Need:
    """Return a need whose values are legal. Raises ValueError, TypeError or KeyError."""
    from harness.plugin import need_of_mark  # late: it imports pytest

    rest = dict(data)
    return Need.from_json(need_of_mark((rest.pop("gpus"),), rest))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {value!r}")
    return value
