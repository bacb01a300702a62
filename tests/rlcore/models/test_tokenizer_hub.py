"""Tokenizers of users' checkpoints: read as their files say, alike to transformers, faults told."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models.tokenizer import CharacterTokenizer, HubTokenizer, load_tokenizer
from rlcore.types import Tokenizer as EngineTokenizer
from tests.support.recorded_programs import PEERS_VARIABLE, run

PEERS = os.environ.get(PEERS_VARIABLE, "")
NEEDS_PEERS = pytest.mark.skipif(not PEERS, reason=f"{PEERS_VARIABLE} names no Python with transformers")
SPECIAL = ["<|end|>", "<|im_end|>", "<|pad|>", "<|begin|>"]
TEXTS = ["the cat sat on the mat", "a cat, then: <|im_end|>the mat", "día 🐈 \n\t x=1  "]
READ = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
ids = [tokenizer.encode(text, add_special_tokens=False) for text in json.loads(sys.argv[2])]
texts = [tokenizer.decode(each + [tokenizer.eos_token_id], skip_special_tokens=True) for each in ids]
print(json.dumps([ids, texts, tokenizer.eos_token_id, tokenizer.pad_token_id]))
"""
few = settings(max_examples=50)


def byte_pairs(directory: Path, **configs: Any) -> Path:
    """A byte-level tokenizer as Llama 3's and Qwen's are, which adds a token in front, and configs by their names."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat"] * 8, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 3)])
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    directory.mkdir(exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    for name, config in configs.items():
        (directory / f"{name}.json").write_text(json.dumps(config))
    return directory


def loaded(directory: Path) -> HubTokenizer:
    tokenizer: EngineTokenizer = load_tokenizer(directory)
    assert isinstance(tokenizer, HubTokenizer)
    return tokenizer


@few
@given(text=st.text())
def test_a_text_comes_back(tmp_path: Path, text: str) -> None:
    if not (tmp_path / "tokenizer.json").exists():
        byte_pairs(tmp_path, tokenizer_config={"eos_token": "<|end|>"})
    tokenizer = loaded(tmp_path)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode([*tokens, tokenizer.eos_id]) == text
    assert all(len(SPECIAL) <= token < tokenizer.vocab_size for token in tokens)


def test_special_tokens_are_read_and_not_written(tmp_path: Path) -> None:
    tokenizer = loaded(byte_pairs(tmp_path, tokenizer_config={"eos_token": "<|end|>"}))
    tokens = tokenizer.encode("the<|im_end|>")
    assert tokens[-1] == 1
    assert tokenizer.decode(tokens) == "the"
    assert tokenizer.vocab_size == max(tokenizer.backend.get_vocab().values()) + 1


@pytest.mark.parametrize(
    ("configs", "eos", "pad", "stops"),
    [
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, 1, 1, ()),
        ({"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|pad|>"}}, 1, 2, ()),
        ({"special_tokens_map": {"eos_token": "<|end|>", "pad_token": {"content": "<|pad|>"}}}, 0, 2, ()),
        ({"generation_config": {"eos_token_id": [1, 0], "pad_token_id": 2}}, 1, 2, (0,)),
        ({"tokenizer_config": {"eos_token": "<|end|>"}, "generation_config": {"eos_token_id": [1, 0]}}, 0, 0, (1,)),
        ({"config": {"eos_token_id": 1, "pad_token_id": None}}, 1, 1, ()),
        ({"config": {"eos_token_id": 1, "pad_token_id": -1}}, 1, 1, ()),
        ({"tokenizer_config": {"eos_token": None}, "config": {"eos_token_id": 0}}, 0, 0, ()),
    ],
    ids=str,
)
def test_files_say_what_ends_and_fills_up(
    tmp_path: Path, configs: dict[str, Any], eos: int, pad: int, stops: tuple[int, ...]
) -> None:
    tokenizer = loaded(byte_pairs(tmp_path / "theirs", **configs))
    tokenizer.save(tmp_path / "saved")
    for each in (tokenizer, loaded(tmp_path / "saved")):
        assert (each.eos_id, each.pad_id, each.stop_ids) == (eos, pad, stops)


def test_files_are_saved_as_they_were(tmp_path: Path) -> None:
    byte_pairs(tmp_path / "theirs", tokenizer_config={"eos_token": "<|end|>", "chat_template": "{{ messages }}"})
    (tmp_path / "theirs" / "chat_template.jinja").write_text("{{ messages }}")
    tokenizer = loaded(tmp_path / "theirs")
    tokenizer.save(tmp_path / "saved")
    theirs = {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    saved = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    assert json.loads(saved.pop("generation_config.json")) == {"eos_token_id": [0], "pad_token_id": 0}
    assert saved == theirs
    assert tokenizer.is_saved_in(tmp_path / "saved")
    (tmp_path / "saved" / "chat_template.jinja").write_text("{{ message }}")
    assert not tokenizer.is_saved_in(tmp_path / "saved")


def test_an_end_that_is_an_ordinary_token_is_not_decoded(tmp_path: Path) -> None:
    byte_pairs(tmp_path, config={"eos_token_id": 70})
    tokenizer = loaded(tmp_path)
    assert tokenizer.decode([60, 70]) == tokenizer.decode([60]) != ""


@pytest.mark.parametrize(
    ("configs", "told"),
    [
        ({}, "names no token that ends a completion"),
        ({"tokenizer_config": {"eos_token": "</s>"}}, "eos_token '</s>' of .*tokenizer_config.json"),
        ({"config": {"eos_token_id": 4000}}, "eos token 4000"),
        ({"config": {"eos_token_id": 0, "pad_token_id": 4000}}, "pad token 4000"),
        ({"generation_config": {"eos_token_id": [0, 4000]}}, "stop token 4000"),
    ],
    ids=str,
)
def test_what_is_not_named_or_no_token_is_told(tmp_path: Path, configs: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValueError, match=told):
        load_tokenizer(byte_pairs(tmp_path, **configs))


def test_files_that_are_missing_or_broken_are_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no tokenizer\.json") as raised:
        load_tokenizer(tmp_path)
    assert "save_pretrained" in raised.value.remedy
    byte_pairs(tmp_path)
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)


def test_ours_is_told_from_one_of_single_characters(tmp_path: Path) -> None:
    CharacterTokenizer("abc").save(tmp_path)
    assert isinstance(load_tokenizer(tmp_path), CharacterTokenizer)
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    assert isinstance(load_tokenizer(tmp_path), HubTokenizer)
    with pytest.raises(InvalidValueError, match="not of single characters"):
        CharacterTokenizer.load(tmp_path)


@NEEDS_PEERS
def test_transformers_reads_the_same(tmp_path: Path) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
    }
    tokenizer = loaded(byte_pairs(tmp_path / "theirs", tokenizer_config=config))
    tokenizer.save(tmp_path / "saved")
    done = run(PEERS, "-c", READ, str(tmp_path / "saved"), json.dumps(TEXTS))
    assert done.exit_code == 0, done.errors
    ids = [tokenizer.encode(text) for text in TEXTS]
    texts = [tokenizer.decode(each) for each in ids]
    assert json.loads(done.output.splitlines()[-1]) == [ids, texts, tokenizer.eos_id, tokenizer.pad_id]
