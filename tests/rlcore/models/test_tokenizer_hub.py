"""Tokenizers of users' checkpoints: read as their files say, alike to transformers, faults told."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models.tokenizer import CharacterTokenizer, HubTokenizer, load_tokenizer
from rlcore.types import Messages
from rlcore.types import Tokenizer as EngineTokenizer
from tests.support.recorded_programs import NEEDS_PEERS, PEERS, run

SPECIAL = ["<|end|>", "<|im_end|>", "<|pad|>", "<|begin|>"]
TEXTS = ["the cat sat on the mat", "a cat, then: <|im_end|>the mat", "día 🐈 \n\t x=1  "]
READ = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
ids = [tokenizer.encode(text, add_special_tokens=False) for text in json.loads(sys.argv[2])]
texts = [tokenizer.decode(each + [tokenizer.eos_token_id], skip_special_tokens=True) for each in ids]
prompts = tokenizer(json.loads(sys.argv[2]))["input_ids"]
rendered, chats = [], []
for each in json.loads(sys.argv[3]):
    rendered.append(tokenizer.apply_chat_template(each, add_generation_prompt=True, tokenize=False))
    chats.append(tokenizer.apply_chat_template(each, add_generation_prompt=True)["input_ids"])
print(json.dumps([ids, texts, tokenizer.eos_token_id, tokenizer.pad_token_id, prompts, rendered, chats]))
"""
CHATML = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('unknown role ' + message.role) }}
    {%- endif %}
    {%- if message.content is none %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}
    {%- if message.tools %}{{- message.tools | tojson }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
CHATS: list[Messages] = [
    [{"role": "user", "content": " the cat sat <b> & día"}],
    [
        {"role": "system", "content": "the mat"},
        {"role": "user", "content": "cat", "tools": [{"name": "día", "<": [1.5, None]}]},
        {"role": "assistant", "content": None},
    ],
]
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
        ({"config": {"eos_token_id": 4000}}, "eos_token 4000 of .*/config.json"),
        ({"config": {"eos_token_id": 0, "pad_token_id": 4000}}, "pad_token 4000 of .*/config.json"),
        ({"generation_config": {"eos_token_id": [0, 4000]}}, "eos_token 4000 of .*generation_config.json"),
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
    assert type(load_tokenizer(tmp_path)) is HubTokenizer


def test_a_raw_prompt_gets_the_first_token_of_its_tokenizer_once(tmp_path: Path) -> None:
    tokenizer = loaded(byte_pairs(tmp_path, tokenizer_config={"eos_token": "<|end|>"}))
    text = "the cat"
    assert tokenizer.encode_prompt(text) == (text, [3, *tokenizer.encode(text)])
    assert tokenizer.encode_prompt("<|begin|>" + text)[1] == [3, *tokenizer.encode(text)]
    assert tokenizer.encode_prompt("<|end|>" + text)[1] == [3, 0, *tokenizer.encode(text)]


def test_a_tokenizer_that_adds_nothing_adds_nothing_to_a_prompt(tmp_path: Path) -> None:
    byte_pairs(tmp_path, tokenizer_config={"eos_token": "<|end|>"})
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = processors.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = loaded(tmp_path)
    assert tokenizer.encode_prompt("the cat") == ("the cat", tokenizer.encode("the cat"))


@pytest.mark.parametrize("where", ["tokenizer_config.json", "named", "chat_template.jinja"])
def test_messages_are_rendered_by_the_chat_template(tmp_path: Path, where: str) -> None:
    config: dict[str, Any] = {"eos_token": "<|end|>", "bos_token": {"content": "<|begin|>"}}
    if where == "chat_template.jinja":
        config["chat_template"] = "another"
    elif where == "named":
        config["chat_template"] = [{"name": "rag", "template": "{{ x }}"}, {"name": "default", "template": CHATML}]
    else:
        config["chat_template"] = CHATML
    byte_pairs(tmp_path, tokenizer_config=config)
    if where == "chat_template.jinja":
        (tmp_path / where).write_text(CHATML, "utf-8")
    text, tokens = loaded(tmp_path).encode_prompt(CHATS[0])
    start = "<|im_start|>"
    assert text == f"<|begin|>{start}user\nthe cat sat <b> & día<|im_end|>\n{start}assistant\n"
    assert tokens == loaded(tmp_path).encode(text)
    assert tokens.count(3) == 1


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (CHATML, "refuses a prompt: unknown role critic"),
        ("{{ messages.__class__.__mro__ }}", "refuses a prompt: access to attribute '__class__'"),
        ("{{ strftime_now('%d') }}", "refuses a prompt: 'strftime_now' is undefined"),
        ("{% if %}", "refuses a prompt: Expected an expression"),
        (None, "messages for a tokenizer without a chat template"),
    ],
)
def test_messages_that_cannot_be_rendered_are_refused(tmp_path: Path, template: str | None, told: str) -> None:
    byte_pairs(tmp_path, tokenizer_config={"eos_token": "<|end|>", "chat_template": template})
    with pytest.raises(InvalidValueError, match=told):
        loaded(tmp_path).encode_prompt([{"role": "critic", "content": "no"}])
    with pytest.raises(InvalidValueError, match="messages for a tokenizer without a chat template"):
        CharacterTokenizer("abc").encode_prompt(CHATS[0])


@NEEDS_PEERS
def test_transformers_reads_the_same(tmp_path: Path) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "bos_token": "<|begin|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML,
    }
    tokenizer = loaded(byte_pairs(tmp_path / "theirs", tokenizer_config=config))
    tokenizer.save(tmp_path / "saved")
    done = run(PEERS, "-c", READ, str(tmp_path / "saved"), json.dumps(TEXTS), json.dumps(CHATS))
    assert done.exit_code == 0, done.errors
    ids = [tokenizer.encode(text) for text in TEXTS]
    texts = [tokenizer.decode(each) for each in ids]
    prompts = [tokenizer.encode_prompt(text)[1] for text in TEXTS]
    rendered, chats = zip(*map(tokenizer.encode_prompt, CHATS), strict=True)
    ours = [ids, texts, tokenizer.eos_id, tokenizer.pad_id, prompts, list(rendered), list(chats)]
    assert json.loads(done.output.splitlines()[-1]) == ours
