"""Pictures of the documents: each is shown somewhere, and small; those of pages come from one script."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".github" / "screenshots"


def test_each_picture_is_shown_in_a_document() -> None:
    documents = "".join(path.read_text("utf-8") for room in (".", "harness/**") for path in ROOT.glob(f"{room}/*.md"))
    shown = set(re.findall(r"\.github/screenshots/([\w.]+)", documents))
    assert {path.name for path in PLACE.iterdir()} - shown == set()


def test_pictures_of_pages_are_small_and_made_by_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("selenium", reason="pip install 'rlharness[browser]'")
    pytest.importorskip("PIL", reason="pip install 'rlharness[browser]'")
    from tests import screenshots

    pictures = list(PLACE.glob("*.png"))
    assert pictures and max(path.stat().st_size for path in pictures) <= screenshots.MAX_BYTES
    assert {path.name.partition("_")[0] for path in pictures} <= screenshots.PICTURES.keys()
    assert screenshots.main(["nothing"]) == 2
    assert "there are report" in capsys.readouterr().err
