"""What earlier runs collected spares the imports of files that have not changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.runner.need import Need
from harness.runner.records.collected_file import CollectedFile
from tests.runner.collection.test_collect import COMPUTED, Suite, marked


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    made = Suite(tmp_path / "suite", tmp_path / "scratch")
    made.write({"pytest.ini": "[pytest]\n"})
    return made


@dataclass
class Remembering:
    """What is kept in place of a history."""

    kept: dict[str, tuple[str, CollectedFile]] = field(default_factory=dict)

    def collected_files(self, keys: Mapping[str, str], /) -> dict[str, CollectedFile]:
        return {path: file for path, (key, file) in self.kept.items() if keys.get(path) == key}

    def keep_collected(self, files: Mapping[str, tuple[str, CollectedFile]], /) -> None:
        self.kept |= files


@pytest.mark.full
def test_a_file_that_has_not_changed_is_not_imported_again(suite: Suite) -> None:
    suite.write({"conftest.py": "", "test_a.py": marked("1"), "test_b.py": COMPUTED, "test_c.py": ""})
    memory = Remembering()
    first = suite.collect(memory=memory)
    assert list(first.why_imported) == ["test_a.py", "test_b.py"]
    again = suite.collect(memory=memory)
    assert again.why_imported == {}
    assert (again.units, again.asks, again.files) == (first.units, first.asks, first.files)
    assert list(suite.collect(memory=memory, context="another machine").why_imported) == ["test_a.py", "test_b.py"]
    suite.collect(memory=memory)
    suite.write({"test_a.py": marked("4")})
    changed = suite.collect(memory=memory)
    assert list(changed.why_imported) == ["test_a.py"]
    assert changed.units[0].need == Need(4)
    assert list(suite.collect(memory=memory, distrusted=lambda _: frozenset({"test_b.py"})).why_imported) == [
        "test_b.py"
    ]
    suite.write({"conftest.py": "# changed"})
    assert list(suite.collect(memory=memory).why_imported) == ["test_a.py", "test_b.py"]


def test_a_file_that_fails_or_skips_is_imported_again(suite: Suite) -> None:
    skipping = "import pytest\npytest.importorskip('surely_not_there')\n" + COMPUTED
    suite.write({"test_a.py": skipping, "test_b.py": marked("-1")})
    memory = Remembering()
    suite.collect(memory=memory)
    assert memory.kept == {}
