"""Prompts from files: JSON lines and parquet alike, every fault told with its place, no prompt on both sides."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.config import TaskSection
from rlcore.data.files import read_rows, split_rows
from rlcore.data.tasks import alphabet, make_task
from rlcore.errors import InvalidValueError, RewardError
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.types import Messages
from tests.rlcore.data import reward_examples

few = settings(max_examples=30)
Rows = Sequence[dict[str, Any]]


def json_lines(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def parquet(path: Path, rows: Rows) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


FORMATS: dict[str, Callable[[Path, Rows], Path]] = {".jsonl": json_lines, ".parquet": parquet}
every_format = pytest.mark.parametrize("suffix", FORMATS)


def written(directory: Path, rows: Rows, suffix: str = ".jsonl") -> Path:
    return FORMATS[suffix](directory / f"prompts{suffix}", rows)


def section(path: Path, **values: Any) -> TaskSection:
    return TaskSection.model_validate({"name": "file", "path": str(path), "num_prompts": 2, "num_heldout": 1, **values})


# -------------------------------------------------------------------------------------------------------------- rows


@every_format
def test_rows_are_read_in_their_order(tmp_path: Path, suffix: str) -> None:
    rows = [{"prompt": f"é {n}", "answer": str(n), "extra_info": {"index": n}, "tests": ["a"]} for n in range(3)]
    read = read_rows(written(tmp_path, rows, suffix))
    assert [{"prompt": row.prompt, **row.columns} for row in read] == rows
    assert read[1].place.endswith((":2", ", row 1"))


def test_blank_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n\n  \n{"prompt": "b\u2028"}')
    assert [(row.prompt, row.place) for row in read_rows(path)] == [("a", f"{path}:1"), ("b\u2028", f"{path}:4")]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"prompt": "a"}\n{"prompt": ', r"a\.jsonl:2: Expecting value"),
        (b'{"prompt": "\xff"}', r"a\.jsonl:1: .*utf-8"),
        (b'["a"]', r"a\.jsonl:1: a list, not a JSON object"),
        (b'{"promt": "a"}', r"a\.jsonl:1: no column 'prompt'"),
        (b'{"prompt": ""}', r"a\.jsonl:1: column 'prompt' is ''"),
        (b'{"prompt": 3}', r"a\.jsonl:1: column 'prompt' is 3"),
        (b'{"prompt": [{"role": "user"}]}', r"(?s)a\.jsonl:1: column 'prompt' is \[.*or messages"),
        (b'{"prompt": "a", "x": 1}\n{"prompt": "a"}', r"a\.jsonl:2: column 'x' is not in every row"),
        (b'{"prompt": "a", "completions": 1}', "a column 'completions'"),
        (b"\n", "holds no prompt"),
    ],
    ids=repr,
)
def test_faults_are_told_with_their_place(tmp_path: Path, content: bytes, told: str) -> None:
    (path := tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(InvalidValueError, match=told):
        read_rows(path)


def test_a_file_that_is_not_there_or_of_another_kind_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"a\.jsonl is not a file"):
        read_rows(tmp_path / "a.jsonl")
    with pytest.raises(InvalidValueError, match=r"is called \.csv") as raised:
        read_rows(tmp_path / "a.csv")
    assert raised.value.legal == ".jsonl, .ndjson, .json, .parquet"


def test_a_parquet_file_that_is_none_is_told(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (path := tmp_path / "a.parquet").write_bytes(b"no")
    with pytest.raises(InvalidValueError, match=r"a\.parquet cannot be read"):
        read_rows(path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidValueError, match=r"needs pyarrow") as raised:
        read_rows(path)
    assert "rlharness[parquet]" in raised.value.remedy


# -------------------------------------------------------------------------------------------------------------- sides


@few
@given(
    texts=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    seed=st.integers(0, 9),
)
def test_no_prompt_is_on_both_sides(tmp_path: Path, texts: list[str], sizes: tuple[int, int], seed: int) -> None:
    path = written(tmp_path, [{"prompt": text, "row": row} for row, text in enumerate(texts)])
    try:
        train, heldout, num_unused = split_rows(path, *sizes, seed)
    except InvalidValueError:
        return
    assert (len(train), len(heldout)) == sizes
    assert not {row.prompt for row in train} & {row.prompt for row in heldout}
    taken = [row.columns["row"] for row in (*train, *heldout)]
    assert len({*taken}) == len(taken)
    assert [texts[row] for row in taken] == [row.prompt for row in (*train, *heldout)]
    assert (train, heldout, num_unused) == split_rows(path, *sizes, seed)
    assert len(train) + len(heldout) + num_unused == len(texts)


def test_rows_of_one_prompt_are_all_trained_on(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": text, "answer": "", "row": row} for row, text in enumerate("abab")])
    train, (heldout,), num_unused = split_rows(path, None, 1, 0)
    assert [row.columns["row"] for row in train] == ([1, 3] if heldout.prompt == "a" else [0, 2])
    assert num_unused == 1, "the other row of the prompt that is held out"
    assert make_task(section(path, num_prompts=1), CharacterTokenizer("ab"), 0).num_unused == 2


def test_the_seed_decides_which(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": str(number)} for number in range(20)])
    assert len({tuple(row.prompt for row in split_rows(path, 5, 5, seed)[0]) for seed in range(4)}) == 4


def test_too_few_rows_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": text} for text in "aab"])
    with pytest.raises(InvalidValueError, match=r"has 3 rows of 2 prompts, and 512 \+ 1 are wanted") as raised:
        split_rows(path, 512, 1, 0)
    assert raised.value.legal == "task.num_prompts + task.num_heldout at most 3"


# -------------------------------------------------------------------------------------------------------------- tasks


@every_format
def test_a_task_is_made_of_a_file(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path, [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(1, 5)], suffix)
    assert alphabet("file", str(path)) == "+123468="
    task = make_task(section(path), CharacterTokenizer(alphabet("file", str(path))), 0)
    assert [len(task.train), len(task.heldout), task.name] == [2, 1, "file"]
    for prompt in (*task.train, *task.heldout):
        assert prompt.columns == {"answer": str(2 * int(prompt.text[0]))}
    assert [reward.name for reward in task.rewards] == ["matching"]


@every_format
def test_messages_are_prompts(tmp_path: Path, suffix: str) -> None:
    class Chat(CharacterTokenizer):
        def encode_prompt(self, prompt: str | Messages) -> tuple[str, list[int]]:
            assert not isinstance(prompt, str)
            text = "".join(f"{each['role'][0]}:{each['content']}" for each in prompt)
            return text, self.encode(text)

    rows = [{"prompt": [{"role": "user", "content": text}], "answer": text} for text in ("ab", "ba", "aa", "aa")]
    path = written(tmp_path, rows, suffix)
    task = make_task(section(path), Chat("abu:"), 0)
    prompts = (*task.train, *task.heldout)
    assert all(prompt.text == f"u:{prompt.columns['answer']}" for prompt in prompts)
    assert all(list(prompt.tokens) == Chat("abu:").encode(prompt.text) for prompt in prompts)
    with pytest.raises(InvalidValueError, match="messages for a tokenizer"):
        make_task(section(path), CharacterTokenizer("abu:"), 0)


def test_a_prompt_that_has_no_tokens_is_told_with_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": text, "answer": ""} for text in ("a", "ab", "ac?")])
    with pytest.raises(InvalidValueError, match=rf"{path}:3: '\?' in a text"):
        make_task(section(path), CharacterTokenizer("abc"), 0)


def test_a_prompt_that_the_model_has_no_room_for_is_told_with_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": text, "answer": ""} for text in ("a", "ab", "abc")])
    tokenizer = CharacterTokenizer("abc")
    assert len(make_task(section(path), tokenizer, 0, context=7, num_new_tokens=4).train) == 2
    with pytest.raises(InvalidValueError, match=rf"{path}:3: a prompt of 3 tokens, and up to 4 after it") as raised:
        make_task(section(path), tokenizer, 0, context=6, num_new_tokens=4)
    assert raised.value.legal == "6 together: the model reads no more"


@pytest.mark.parametrize("answer", [3, None, ["a"]], ids=repr)
def test_what_is_compared_is_text(tmp_path: Path, answer: Any) -> None:
    path = written(tmp_path, [{"prompt": text, "answer": answer} for text in "abc"])
    with pytest.raises(InvalidValueError, match=r"prompts\.jsonl:\d: column 'answer'") as raised:
        make_task(section(path), CharacterTokenizer("abc"), 0)
    assert "task.rewards" in raised.value.remedy


def test_rewards_are_those_that_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": text} for text in "abc"])
    names = (f"{reward_examples.__name__}:length", f"openrlhf:{reward_examples.__name__}:reward_func")
    tokenizer = CharacterTokenizer("abc")
    task = make_task(section(path, rewards=names, reward_timeout_s=2), tokenizer, 0)
    assert [(each.name, each.weight, each.timeout_s) for each in task.rewards] == [(name, 1.0, 2.0) for name in names]
    task = make_task(section(path, rewards=names, reward_weights=(0.5, -1)), tokenizer, 0)
    assert [each.weight for each in task.rewards] == [0.5, -1.0]


def test_a_reward_that_wants_another_column_is_told_when_the_task_is_made(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": text} for text in "abc"])
    with pytest.raises(RewardError, match=r"rlcore\.rewards\.text:exact wants 'answer'"):
        make_task(section(path, rewards=("rlcore.rewards.text:exact",)), CharacterTokenizer("abc"), 0)
