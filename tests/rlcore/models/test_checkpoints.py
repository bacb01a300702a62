"""Checkpoints: ours are read back to the bit, whole or not at all; transformers reads ours, and we read theirs."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models import checkpoints
from rlcore.models.checkpoints import (
    CONFIG,
    INDEX,
    KNOWN_CONFIG,
    WEIGHTS,
    Part,
    check_known_parts,
    hub_parts,
    load,
    save,
)
from rlcore.models.config import ARCHITECTURES, FAMILIES, DecoderConfig, RopeScaling, read_config, written_config
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from tests.support.recorded_programs import NEEDS_PEERS, PEERS, program, run

OF_TRANSFORMERS = Path(__file__).parent / "of_transformers"
"""Checkpoints by transformers 5.23 with its logits: tests/support/programs/hugging_face_logits.py small DIR."""
TINY = DecoderConfig("llama", 40, 32, 2, 4, 2, 16, 48, max_length=64)
STRETCHED = RopeScaling(8.0, 1.0, 4.0, 16)
VARIANTS = [
    *(replace(TINY, family=family, is_tied=is_tied) for family in FAMILIES for is_tied in (True, False)),
    replace(TINY, rope_scaling=STRETCHED, rope_theta=5e5),
]


def save_in_shards(decoder: Decoder, directory: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SHARD_BYTES", 5000)
        save(decoder, directory)


def saved(directory: Path, config: DecoderConfig = TINY, write: Callable[[Decoder, Path], None] = save) -> Decoder:
    """A decoder whose every weight is random, norms and biases too, and its checkpoint."""
    decoder = Decoder(config).initialise(3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    write(decoder, directory)
    return decoder


def is_same(a: Decoder, b: Decoder) -> bool:
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return a.config == b.config and all(x == y and torch.equal(v, w) for (x, v), (y, w) in pairs)


@pytest.mark.parametrize("config", VARIANTS, ids=str)
@pytest.mark.parametrize("write", [save, save_in_shards])
def test_what_is_saved_is_read_back(
    tmp_path: Path, config: DecoderConfig, write: Callable[[Decoder, Path], None]
) -> None:
    decoder = saved(tmp_path, config, write)
    assert (tmp_path / INDEX).exists() == (write is save_in_shards)
    assert is_same(load(tmp_path), decoder)


def test_types_are_kept_or_converted(tmp_path: Path) -> None:
    decoder = saved(tmp_path)
    narrow = load(tmp_path, dtype=torch.bfloat16)
    assert narrow.embedding.dtype == torch.bfloat16
    assert torch.equal(narrow.embedding, decoder.embedding.bfloat16())
    save(narrow, tmp_path / "narrow")
    assert is_same(load(tmp_path / "narrow"), narrow)


def test_a_smaller_checkpoint_leaves_nothing_of_a_larger_one(tmp_path: Path) -> None:
    saved(tmp_path, replace(TINY, num_layers=4), save_in_shards)
    assert is_same(saved(tmp_path), load(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "without model.norm.weight"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "with extra"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}), r"model.norm.weight is \(3,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, change: Any, told: str) -> None:
    saved(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    change(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=told):
        load(tmp_path)


def test_weights_outside_the_directory_are_not_opened(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoint", write=save_in_shards)
    saved(tmp_path)
    index = tmp_path / "checkpoint" / INDEX
    for elsewhere in ("../model.safetensors", str(tmp_path / WEIGHTS)):
        weights = dict.fromkeys(load_file(tmp_path / WEIGHTS), elsewhere)
        index.write_text(json.dumps({"weight_map": weights}), encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"index\.json names"):
            load(tmp_path / "checkpoint")


def test_files_that_are_torn_or_absent_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    content = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"GPT2LMHeadModel\n  legal:  LlamaForCausalLM, Qwen2.*, Qwen3"),
        ({"architectures": None}, "not named"),
        ({"attention_dropout": 0.1}, "attention_dropout 0.1"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window True"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type 'linear'"),
        ({"num_key_value_heads": 3}, "num_kv_heads 3"),
        ({"max_position_embeddings": 2**31}, "max_length 2147483648"),
        ({"hidden_size": "64"}, "hidden_size '64'"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps 1000"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValueError, match=told):
        read_config({**written_config(TINY, "float32"), **change})


def test_types_that_are_not_read_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    found = json.loads((tmp_path / CONFIG).read_text("utf-8"))
    (tmp_path / CONFIG).write_text(json.dumps({**found, "torch_dtype": "float16"}), encoding="utf-8")
    with pytest.raises(InvalidValueError, match="float16"):
        load(tmp_path)
    assert load(tmp_path, dtype=torch.float32).embedding.dtype == torch.float32


@pytest.mark.parametrize(("family", "length"), [("llama", 2048), ("qwen2", 32768), ("qwen3", 32768)])
def test_what_a_config_lacks_is_as_transformers_has_it(family: str, length: int) -> None:
    written = written_config(replace(TINY, family=family, norm_eps=1e-5), "float32")
    optional = ("max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_parameters", "hidden_act")
    found = read_config({key: value for key, value in written.items() if key not in optional})
    assert (found.max_length, found.norm_eps, found.rope_theta) == (length, 1e-6, 10000.0)
    assert read_config({**written, "hidden_act": "swish", "num_key_value_heads": None}).num_kv_heads == TINY.num_heads
    with pytest.raises(InvalidValueError, match="vocab_size None"):
        read_config({**written, "vocab_size": None})


@pytest.mark.parametrize("config", VARIANTS, ids=str)
def test_a_config_is_read_as_it_was_written(config: DecoderConfig) -> None:
    written = written_config(config, "float32")
    assert read_config(written) == config
    assert read_config({key: value for key, value in written.items() if key != "rope_parameters"}) == config
    assert written["architectures"][0] in ARCHITECTURES


# ------------------------------------------------------------------------------------------------------- transformers


def assert_same_logits(decoder: Decoder, directory: Path) -> None:
    expected = load_file(directory / "logits.safetensors")
    with torch.no_grad():
        logits = decoder(expected["tokens"])
    assert expected["logits"].std() > 0.5, "near-uniform logits would agree with anything"
    torch.testing.assert_close(logits, expected["logits"], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_that_transformers_wrote_has_its_logits_and_is_written_as_it_was(
    family: str, tmp_path: Path
) -> None:
    """Two projections that are exchanged in reading and in writing alike are read back to the bit."""
    directory = OF_TRANSFORMERS / family
    decoder = load(directory)
    assert_same_logits(decoder, directory)
    save(decoder, tmp_path)
    written, expected = load_file(tmp_path / WEIGHTS), load_file(directory / WEIGHTS)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("pair", [("gate_proj", "up_proj"), ("k_proj", "v_proj")])
def test_exchanged_projections_are_seen(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def exchanged(config: DecoderConfig) -> Iterator[Part]:
        others = {pair[0]: pair[1], pair[1]: pair[0]}
        for part in hub_parts(config):
            words = [others.get(word, word) for word in part.name.split(".")]
            yield replace(part, name=".".join(words))

    monkeypatch.setattr("rlcore.models.checkpoints.hub_parts", exchanged)
    with pytest.raises(CheckpointError, match=f"are not where transformers has them, but at(.|\n)*{pair[0]}"):
        load(OF_TRANSFORMERS / "qwen3")
    with pytest.raises(CheckpointError, match=f"are not where transformers has them, but at(.|\n)*{pair[0]}"):
        save(Decoder(TINY), OF_TRANSFORMERS / "never_written")
    monkeypatch.setattr("rlcore.models.checkpoints.check_known_parts", lambda: None)
    with pytest.raises(AssertionError, match="not close"):
        assert_same_logits(load(OF_TRANSFORMERS / "qwen3"), OF_TRANSFORMERS / "qwen3")


def test_every_tensor_is_where_transformers_has_it() -> None:
    """The table behind the digest that `check_known_parts` compares."""
    layer = "model.layers.0"
    assert {part.name: (part.parameter, part.first, part.last) for part in hub_parts(KNOWN_CONFIG)} == {
        "model.embed_tokens.weight": ("embedding", 0, 3),
        f"{layer}.input_layernorm.weight": ("layers.0.attention_norm", 0, 4),
        **{
            f"{layer}.self_attn.{name}_proj.{kind}": (f"layers.0.{ours}", first, last)
            for name, first, last in (("q", 0, 4), ("k", 4, 6), ("v", 6, 8))
            for kind, ours in (("weight", "qkv"), ("bias", "qkv_bias"))
        },
        f"{layer}.self_attn.o_proj.weight": ("layers.0.out", 0, 4),
        f"{layer}.post_attention_layernorm.weight": ("layers.0.mlp_norm", 0, 4),
        f"{layer}.mlp.gate_proj.weight": ("layers.0.gate_up", 0, 5),
        f"{layer}.mlp.up_proj.weight": ("layers.0.gate_up", 5, 10),
        f"{layer}.mlp.down_proj.weight": ("layers.0.down", 0, 4),
        "model.norm.weight": ("norm", 0, 4),
        "lm_head.weight": ("head", 0, 3),
    }
    check_known_parts()


@NEEDS_PEERS
def test_their_checkpoints_give_their_logits(tmp_path: Path) -> None:
    done = run(*program("hugging_face_logits", "make", str(tmp_path), python=PEERS))
    assert done.exit_code == 0, done.errors
    directories = sorted(tmp_path.iterdir())
    assert len(directories) == 6
    assert (tmp_path / "qwen3" / INDEX).exists()
    for directory in directories:
        assert_same_logits(load(directory), directory)


@NEEDS_PEERS
def test_ours_give_our_logits_there(tmp_path: Path) -> None:
    directories = [tmp_path / str(number) for number in range(len(VARIANTS))]
    decoders = [saved(directory, config) for directory, config in zip(directories, VARIANTS, strict=True)]
    save_in_shards(decoders[0], directories[0])
    CharacterTokenizer("abc ").save(directories[0])
    done = run(*program("hugging_face_logits", "read", *map(str, directories), python=PEERS))
    assert done.exit_code == 0, done.errors
    for decoder, directory in zip(decoders, directories, strict=True):
        assert_same_logits(decoder, directory)
    ours = CharacterTokenizer("abc ").encode("ab c")
    assert (directories[0] / "tokens.txt").read_text("utf-8") == f"{ours} ab c"


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"vocab_size": 2**40},
        {"hidden_size": 2**40},
        {"intermediate_size": 2**62},
        {"num_attention_heads": 10**12},
    ],
)
def test_no_memory_is_taken_for_more_weights_than_the_files_have(tmp_path: Path, change: dict[str, int]) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text()) | change
    (tmp_path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"describes .* weights, and the files have"):
        load(tmp_path)
