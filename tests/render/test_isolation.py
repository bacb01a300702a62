"""Notes on isolation: each code has its sentence, on the terminal, in JSON, on the page and in a merged run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.render.run_json import summary_json
from harness.render.run_words import isolation_text
from harness.runner import events
from harness.runner.records.recorded_run import merge_runs, read_recorded_run
from harness.runner.records.stats import RunState
from harness.runner.units import IsolationCode, IsolationNote, NotForked

NOTES = (
    *(IsolationNote(IsolationCode.NOT_FORKED, reason=reason, detail="A b", num_processes=3) for reason in NotForked),
    IsolationNote(IsolationCode.NOT_FORKED, reason=NotForked.THREADS, num_processes=1),
    IsolationNote(IsolationCode.NOT_FORKED, reason=NotForked.CUDA),
    IsolationNote(IsolationCode.TESTS_NOT_FORKED, "a.py", NotForked.THREADS),
    IsolationNote(IsolationCode.TESTS_NOT_FORKED, "a.py", NotForked.CUDA),
    IsolationNote(IsolationCode.TESTS_NOT_FORKED, "a.py", detail="something else"),
    IsolationNote(IsolationCode.TESTS_NOT_FORKED, "", NotForked.PLUGIN_THREADS, detail="plugin", num_processes=31),
)
END = events.RunFinished(9.0, 0, 9.0, 9.0, 0.0, 1.0, 1.0, "", ("a note",), isolation=NOTES)


def test_each_note_has_a_sentence_of_its_own_with_its_values() -> None:
    texts = [isolation_text(note) for note in NOTES]
    assert len(set(texts)) == len(NOTES)
    assert {note.code for note in NOTES} == set(IsolationCode)
    for note, text in zip(NOTES, texts, strict=True):
        assert note.path in text
        assert all(word in text for word in note.detail.split())
        assert not note.num_processes or str(note.num_processes) in text


@pytest.fixture
def record(tmp_path: Path) -> Path:
    told = [
        events.RunStarted(0.0, "id", str(tmp_path), (), (), (), "cgroup", 2),
        events.CollectionFinished(1.0, (), (), 0.0, 0.0, 1.0),
        END,
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(events.to_json_line(event) + "\n" for event in told))
    return path


def test_a_record_is_read_back_with_its_notes(record: Path) -> None:
    assert read_recorded_run(record).finished == END
    assert merge_runs([read_recorded_run(record)]).finished.isolation == NOTES


def test_a_record_without_them_is_of_an_earlier_version(record: Path) -> None:
    *lines, last = record.read_text().splitlines(keepends=True)
    fields = {key: value for key, value in json.loads(last).items() if key != "isolation"}
    record.write_text("".join(lines) + json.dumps(fields) + "\n")
    assert read_recorded_run(record).finished == replace(END, isolation=())


def test_json_has_the_codes_and_the_sentences(record: Path) -> None:
    summary = summary_json(RunState(), END)
    assert summary["notes"] == ["a note", *map(isolation_text, NOTES)]
    assert [note["code"] for note in summary["isolation"]] == [note.code.value for note in NOTES]
    json.dumps(summary)
