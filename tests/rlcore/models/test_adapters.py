"""Adapters: read back to the bit, whole or not at all; peft reads ours, and we read peft's; a base has several."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.bits.tensor_digests import weights_digest
from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models import checkpoints
from rlcore.models.adapters import CONFIG, WEIGHTS, adapter_tensors, attach, load, read, save
from rlcore.models.config import FAMILIES, DecoderConfig, LoraConfig
from rlcore.models.decoder import Decoder, is_adapter
from rlcore.numerics.probe import num_threads
from tests.support.recorded_programs import NEEDS_PEERS, PEERS, program, run

TINY = DecoderConfig("llama", 40, 32, 2, 4, 2, 16, 48, max_length=64, is_tied=False)
ALL = LoraConfig(3, 6.0, frozenset(TINY.projections))
SOME = LoraConfig(2, 8.0, frozenset({"v_proj", "q_proj", "down_proj"}))
TOKENS = torch.randint(3, 40, (2, 50), generator=torch.Generator().manual_seed(1))


def adapted(lora: LoraConfig = ALL, config: DecoderConfig = TINY, seed: int = 4) -> Decoder:
    """A decoder of random weights with adapters whose terms are not 0."""
    decoder = attach(Decoder(config).initialise(3), lora, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (1.0 if is_adapter(name) else 0.2))
    return decoder


def base_of(decoder: Decoder) -> Decoder:
    base = Decoder(replace(decoder.config, lora=None))
    base.load_state_dict({name: each for name, each in decoder.state_dict().items() if not is_adapter(name)})
    return base


def digest(decoder: Decoder) -> str:
    return weights_digest(dict(decoder.named_parameters()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [ALL, SOME], ids=["all", "some"])
def test_what_is_saved_is_read_back(tmp_path: Path, family: str, lora: LoraConfig) -> None:
    decoder = adapted(lora, replace(TINY, family=family))
    save(decoder, tmp_path)
    found = load(base_of(decoder), tmp_path)
    assert found.config == decoder.config
    assert digest(found) == digest(decoder)
    with torch.no_grad():
        assert torch.equal(found(TOKENS), decoder(TOKENS))


def test_a_new_adapter_changes_no_bit_and_follows_from_seed_and_name() -> None:
    base = Decoder(TINY).initialise(3)
    with num_threads(1):
        one = attach(base, ALL, 5)
    with num_threads(2):
        two = attach(base, SOME, 5)
    with torch.no_grad():
        assert torch.equal(one(TOKENS), base(TOKENS))
    a = replace(ALL, rank=SOME.rank)
    same, other = attach(base, a, 5).get_parameter("layers.1.lora.q_proj.a"), attach(base, a, 6)
    assert torch.equal(same, two.get_parameter("layers.1.lora.q_proj.a"))
    assert not torch.equal(same, other.get_parameter("layers.1.lora.q_proj.a"))
    assert not torch.equal(same, two.get_parameter("layers.0.lora.q_proj.a"))
    drawn = one.get_parameter("layers.0.lora.down_proj.a").detach()
    assert 0.9 * 48**-0.5 < float(drawn.abs().max()) <= 48**-0.5


def test_the_term_is_that_of_the_formula() -> None:
    decoder = adapted()
    merged = base_of(decoder)
    with torch.no_grad():
        for number in range(TINY.num_layers):
            first = {"qkv": 0, "out": 0, "gate_up": 0, "down": 0}
            for module, (_, rows) in TINY.projections.items():
                fused = {"q": "qkv", "k": "qkv", "v": "qkv", "o": "out", "g": "gate_up", "u": "gate_up"}
                name = fused.get(module[0], "down")
                a, b = (decoder.get_parameter(f"layers.{number}.lora.{module}.{each}") for each in "ab")
                weight = merged.get_parameter(f"layers.{number}.{name}")
                weight[first[name] : first[name] + rows] += 6.0 / 3 * b @ a
                first[name] += rows
        torch.testing.assert_close(decoder(TOKENS), merged(TOKENS), rtol=1e-3, atol=1e-3)


def test_several_adapters_are_resident_over_one_base() -> None:
    base = Decoder(TINY).initialise(3)
    before = base(TOKENS).detach()
    decoders = [attach(base, lora, seed) for lora, seed in ((ALL, 1), (ALL, 2), (SOME, 1))]
    for number, decoder in enumerate(decoders):
        assert decoder.embedding.data_ptr() == base.embedding.data_ptr()
        assert [name for name, each in decoder.named_parameters() if each.requires_grad] == [
            name for name, _ in decoder.named_parameters() if is_adapter(name)
        ]
        with torch.no_grad():
            for tensor in adapter_tensors(decoder).values():
                tensor.add_(0.1 * (number + 1))
    with torch.no_grad():
        found = [decoder(TOKENS) for decoder in (base, *decoders)]
    assert torch.equal(found[0], before)
    assert all(not torch.equal(one, other) for i, one in enumerate(found) for other in found[:i])
    assert base.embedding.requires_grad


def test_adapters_are_exchanged_in_place(tmp_path: Path) -> None:
    held, other = adapted(seed=4), adapted(seed=5)
    save(other, tmp_path)
    expected = attach(held, ALL, 0)
    for name, tensor in adapter_tensors(expected).items():
        tensor.copy_(adapter_tensors(other)[name])
    places = {name: tensor.data_ptr() for name, tensor in adapter_tensors(held).items()}
    read(held, tmp_path)
    assert {name: tensor.data_ptr() for name, tensor in adapter_tensors(held).items()} == places
    with torch.no_grad():
        assert torch.equal(held(TOKENS), expected(TOKENS))
    with pytest.raises(InvalidValueError, match=r"adapter_config\.json has .*rank=3.*\n.*rank=2"):
        read(adapted(SOME), tmp_path)


def test_narrow_adapters_have_the_type_of_the_base(tmp_path: Path) -> None:
    decoder = adapted()
    save(decoder, tmp_path)
    narrow = load(base_of(decoder).bfloat16(), tmp_path)
    assert {each.dtype for each in narrow.parameters()} == {torch.bfloat16}
    name = "layers.0.lora.q_proj.a"
    assert torch.equal(narrow.get_parameter(name), decoder.get_parameter(name).bfloat16())


# ------------------------------------------------------------------------------------------------ what is refused


def without_one(tensors: dict[str, torch.Tensor]) -> None:
    tensors.pop("base_model.model.model.layers.1.mlp.up_proj.lora_B.weight")


def with_one_more(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = torch.zeros(2)


def of_another_shape(tensors: dict[str, torch.Tensor]) -> None:
    name = "base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight"
    tensors[name] = tensors[name].t().contiguous()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without_one, r"is without base_model.model.model.layers.1.mlp.up_proj.lora_B.weight \(1 missing"),
        (with_one_more, r"with lm_head.weight \(0 missing, 1 unexpected\)"),
        (of_another_shape, r"k_proj.lora_A.weight is \(32, 3\) in .*adapter_model.safetensors"),
    ],
)
def test_every_tensor_is_read_once(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], told: str
) -> None:
    decoder = adapted()
    save(decoder, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    change(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=told):
        load(base_of(decoder), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"lora_dropout": 0.1},
        {"bias": "lora_only"},
        {"use_dora": True},
        {"use_rslora": True},
        {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 2}},
        {"alpha_pattern": {"q_proj": 2}},
        {"layers_to_transform": [0]},
        {"init_lora_weights": "pissa"},
        {"peft_type": "IA3"},
        {"an_option_of_later": 1},
        {"r": 0},
        {"r": True},
        {"lora_alpha": "8"},
        {"lora_alpha": None},
        {"target_modules": "all-linear"},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": []},
    ],
    ids=str,
)
def test_options_that_compute_something_else_are_refused_by_name(tmp_path: Path, change: dict[str, Any]) -> None:
    decoder = adapted()
    save(decoder, tmp_path)
    path = tmp_path / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(InvalidValueError, match=next(iter(change))):
        load(base_of(decoder), tmp_path)


def test_files_that_are_absent_or_damaged_are_named(tmp_path: Path) -> None:
    decoder = adapted()
    with pytest.raises(CheckpointError, match=CONFIG):
        load(base_of(decoder), tmp_path)
    save(decoder, tmp_path)
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=WEIGHTS):
        load(base_of(decoder), tmp_path)


# ----------------------------------------------------------------------------------------------------------- peft


def assert_same_logits(decoder: Decoder, directory: Path) -> None:
    theirs = load_file(directory / "logits.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(decoder(theirs["tokens"]), theirs["logits"], rtol=2e-4, atol=2e-4)


@NEEDS_PEERS
def test_pefts_adapters_give_its_logits(tmp_path: Path) -> None:
    done = run(*program("hugging_face_adapters", "make", str(tmp_path), python=PEERS))
    assert done.exit_code == 0, done.errors
    for directory in sorted(tmp_path.iterdir()):
        base = checkpoints.load(directory)
        decoder = load(base, directory / "adapter")
        assert_same_logits(decoder, directory / "adapter")
        with torch.no_grad():
            assert float((decoder(TOKENS) - base(TOKENS)).abs().max()) > 0.1


@NEEDS_PEERS
def test_ours_give_our_logits_in_peft(tmp_path: Path) -> None:
    decoders = {tmp_path / family: adapted(config=replace(TINY, family=family)) for family in FAMILIES}
    decoders[tmp_path / "some"] = adapted(SOME)
    for directory, decoder in decoders.items():
        checkpoints.save(decoder, directory)
        save(decoder, directory / "adapter", base=str(directory))
    done = run(*program("hugging_face_adapters", "read", *map(str, decoders), python=PEERS))
    assert done.exit_code == 0, done.errors
    assert "missing" not in done.errors, done.errors
    for directory, decoder in decoders.items():
        assert_same_logits(decoder, directory / "adapter")
