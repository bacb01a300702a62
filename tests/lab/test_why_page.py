"""The page that finds out why two runs differ: its commands do, one after the other, what the page shows."""

import re
from pathlib import Path

import pytest

from tests.lab.why_page import PAGE, commands, files, renewed, typed, without_chance

TEXT = PAGE.read_text("utf-8")
VERDICTS = {
    "diff": "DIVERGED  step 0: part 1 of the batch differs",
    "operation": "words.py:10 <module>",
    "deterministic": "EQUAL  5 steps, every recorded bit",
    "mended": "EQUAL  5 steps, every recorded bit",
    "chaos": "DIVERGED  runtime.num_parts=3 alone changes the gradient of weights at step 0",
    "sweep": "DIVERGED  step 0: the gradient of weights differs",
    "step": "mean.py:12 <genexpr>",
}
"""Of some blocks of output a line that the text around them is about."""


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_page_shows_what_its_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # which is what the example is about
    shown = typed(TEXT, tmp_path)
    assert {name: line for name, line in VERDICTS.items() if line not in shown[name]} == {}
    assert without_chance(renewed(TEXT, shown)) == without_chance(TEXT)
    assert {"report.html", "parts.html"} <= {path.name for path in tmp_path.iterdir()}


def test_every_line_that_the_text_is_about_stands_in_the_page() -> None:
    assert {line for line in VERDICTS.values() if line not in TEXT} == set()
    assert list(files(TEXT)) == ["words.py", "mean.py", "mean.yaml"]
    kinds = re.findall(r"<!-- (\w+): ", TEXT)
    assert len(kinds) == len(re.findall(r"^```\w+$", TEXT, re.MULTILINE)), "each block of code has a mark"
    assert len(list(commands(TEXT))) == TEXT.count("\n$ ")


def test_what_chance_decides_is_set_aside_and_nothing_else() -> None:
    a = "loss at step 0  A 0.80956715 (f32:3f4f3fcb)\n      1.012 │⠉⠉\nbaseline: 8.9 s; about 18 s left"
    b = "loss at step 0  A 1e-05 (f32:3f81969b)\n     0.9847 │⠒⠢ B\nbaseline: 18.9 s; about 2 min left"
    assert without_chance(a) == without_chance(b)
    assert without_chance(a) != without_chance(b.replace("loss", "kl"))
