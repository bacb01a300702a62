"""The page of a report as text: whole by itself, nothing of a trace that runs, the same from the same traces."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.lab.report.subjects import Report, Subject
from harness.render.report_page import page
from harness.trace.format import RecordedValue, Scope
from harness.trace.reader import read_trace
from tests.render.report_pages import HOSTILE, NUM_STEPS, page_of, write_pair, write_run
from tests.support.html_elements import Elements
from tests.support.traces import manifest_of, recorded_value, steps_of, write

FETCHING = ("src", "href", "srcset", "action", "poster", "data", "formaction", "ping", "background")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two runs with hostile text in them."""
    directory = tmp_path_factory.mktemp("hostile")
    return page_of(directory, *write_pair(directory))


def test_it_fetches_nothing(hostile: str) -> None:
    elements = Elements(hostile)
    links = [value for _, attributes in elements.found for name, value in attributes.items() if name in FETCHING]
    assert links == ["data:,"]
    style = "".join(re.findall(r"<style>(.*?)</style>", hostile, re.DOTALL))
    assert "url(" not in style and "@import" not in style
    (policy,) = [each["content"] for each in elements.all("meta") if each.get("http-equiv")]
    assert policy and policy.startswith("default-src 'none';") and "unsafe" not in policy


def test_what_a_trace_holds_is_text(hostile: str) -> None:
    assert HOSTILE not in hostile
    text = Elements(hostile).text
    assert text.count(HOSTILE) >= 4, "names, command line"


def test_secrets_are_left_out(hostile: str) -> None:
    assert "hunter2" not in hostile
    assert "--token <redacted>" in Elements(hostile).text


def test_the_page_is_the_golden(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    a, b = write_pair(tmp_path)
    for run in (a, b):
        os.utime(run / "manifest.json", (1.8e9, 1.8e9))
    text = re.sub(r"<(style|script)>.*?</\1>|<meta http-equiv.*?>", "", page_of(tmp_path, a, b), flags=re.DOTALL)
    golden("report_page.html", "\n".join(line for line in text.splitlines() if line.strip()) + "\n")


def test_equal_runs_have_no_next_command(tmp_path: Path) -> None:
    told = Elements(page_of(tmp_path, write_run(tmp_path / "a"), write_run(tmp_path / "b"))).text
    assert "12 steps, every recorded bit." in told and "No value differs in 12 steps." in told
    assert "Next commands" not in told and "Likely causes" not in told


def test_a_run_alone_has_its_curve(tmp_path: Path) -> None:
    told = Elements(page_of(tmp_path, write_run(tmp_path / "a"))).text
    assert "12 steps, 0 to 11" in told and "A single run." in told
    assert "DIVERGED" not in told and "First differences" not in told


def test_of_three_runs_each_is_beside_the_first(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, parts_at=at) for name, at in (("a", NUM_STEPS), ("b", 3), ("c", 8))]
    text = page_of(tmp_path, *runs)
    assert re.findall(r'class="pair" id="(.*?)"', text) == ["pair-0", "pair-1"]
    assert re.findall(r'class="mark line-(.)" x1="(.*?)"', text)[:2] == [("B", "87.3"), ("C", "232.7")]
    assert len(re.findall(r'<path class="line-', text)) == 6


def test_incomplete_and_not_comparable_runs_are_shown_and_said(tmp_path: Path) -> None:
    whole = write(tmp_path / "a", steps_of(4))
    cut = write(tmp_path / "cut", steps_of(2), complete=False)
    other = write(tmp_path / "other", steps_of(4), manifest_of(identity={"seed": "8"}))
    text = Elements(page_of(tmp_path, whole, cut, other)).text
    assert "INCOMPLETE A and B how they differ No difference in 2 steps." in text
    assert "its program did not exit normally; rank-0.log was not closed" in text
    assert "NOT COMPARABLE A and C how they differ No difference in 4 steps." in text
    assert "The configuration or the command differs (identity): seed." in text


def test_a_trace_without_steps_curve_or_manifest_is_a_page(tmp_path: Path) -> None:
    empty, nameless = write(tmp_path / "a", []), write(tmp_path / "b", steps_of(1))
    (nameless / "manifest.json").unlink()
    (nameless / "curve.jsonl").unlink()
    text = Elements(page_of(tmp_path, empty, nameless)).text
    assert "no steps" in text and "manifest.json is missing or cut" in text
    assert page(Report((Subject("A", "a", read_trace(empty)),), ()))


def test_a_leaf_is_named_with_its_occurrence_and_whose_part_it_is(tmp_path: Path) -> None:
    def steps(is_other: bool) -> list[list[RecordedValue]]:
        number = int(is_other)
        return [
            [
                recorded_value("loss", "policy", 0),
                recorded_value("loss", "policy", number, occurrence=1),
                recorded_value("backward", "w", number),
                recorded_value("backward", "w", number, scope=Scope.PHYSICAL),
            ]
        ]

    text = page_of(tmp_path, write(tmp_path / "a", steps(False)), write(tmp_path / "b", steps(True)))
    rows = re.findall(r'<tr><td>(.*?)<small class="name">(.*?)</small>', text)
    assert rows == [
        ("the loss policy", "loss policy #1"),
        ("the gradient of w", "backward w"),
        ("the gradient of w (one batch or rank)", "backward w"),
    ]
