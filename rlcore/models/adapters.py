"""LoRA adapters of a decoder, drawn from a seed, or written and read as peft has them.

    decoder = attach(base, lora, seed)      # the base in the same memory, and adapters whose terms are 0
    save(decoder, directory)                # adapter_config.json, adapter_model.safetensors
    decoder = load(base, directory)
    read(decoder, directory)                # other adapters of the same configuration, in the same memory

As of a checkpoint, every tensor is read exactly once and nothing is left over, or nothing is loaded. Options of peft
that would change what is computed are refused by name.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from harness.bits.files import write_replacing
from rlcore.errors import InvalidValueError
from rlcore.models.checkpoints import Part, hub_tensors, read_weights, write_tensors
from rlcore.models.config import DecoderConfig, LoraConfig, read_json
from rlcore.models.decoder import Decoder, is_adapter
from rlcore.seeds import key

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
BLOCKS = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn"}
"""Module of a layer in which a target module stands; the others are in mlp."""
ONLY: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none", None),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", None),  # the others write to the base too
}
"""Keys whose values have to be these; any other key has to be empty, or one of UNUSED."""
UNUSED = {"auto_mapping", "base_model_name_or_path", "inference_mode", "megatron_core", "peft_version", "revision"}
UNUSED |= {"r", "lora_alpha", "target_modules", "qalora_group_size"}
"""Keys that are read by themselves, or change nothing that is computed."""


def attach(base: Decoder, lora: LoraConfig, seed: int) -> Decoder:
    """Return a decoder of the same base with new adapters, drawn as peft draws them: a uniform, b zero.

    The draw of a parameter follows from the seed and its name: neither from threads nor from other adapters.
    """
    decoder = base.with_adapters(lora)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if is_adapter(name) and name.endswith(".a"):
                generator = torch.Generator().manual_seed(key("lora", seed, name) >> 1)
                uniform = 2 * torch.rand(parameter.shape, generator=generator) - 1
                parameter.copy_(uniform * parameter.shape[1] ** -0.5)  # kaiming_uniform_ with a of sqrt(5)
    return decoder


def adapter_parts(config: DecoderConfig) -> Iterator[Part]:
    """Yield every tensor of the adapters of a decoder, by its name in peft's file."""
    for number in range(config.num_layers):
        for module, shapes in config.low_rank_shapes.items():
            theirs = f"base_model.model.model.layers.{number}.{BLOCKS.get(module, 'mlp')}.{module}.lora_"
            for name, (_, rows) in zip("ab", shapes, strict=True):
                yield Part(f"{theirs}{name.upper()}.weight", f"layers.{number}.lora.{module}.{name}", 0, rows)


def adapter_tensors(decoder: Decoder) -> dict[str, Tensor]:
    """Return the adapters under peft's names; views, not copies."""
    return hub_tensors(decoder, adapter_parts(decoder.config))


def save(decoder: Decoder, directory: Path, *, base: str = "") -> None:
    """Write the adapters as peft loads them; `base` is the directory of the base. The configuration is written last."""
    lora = decoder.config.lora
    assert lora is not None, "a decoder with adapters"
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in adapter_tensors(decoder).items()}
    write_tensors(directory / WEIGHTS, tensors)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": sorted(lora.target_modules),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    write_replacing(directory / CONFIG, json.dumps(config, indent=2))


def load(base: Decoder, directory: Path) -> Decoder:
    """Return a decoder of the same base, in the same memory, with the adapters of a directory, in the base's type.

    Raises InvalidValueError for adapters that compute something else, CheckpointError for weights that do not fit.
    """
    decoder = base.with_adapters(read_lora(directory))
    read(decoder, directory)
    return decoder


@torch.no_grad()
def read(decoder: Decoder, directory: Path) -> None:
    """Write the adapters of a directory over those of a decoder; as `load`, if rank, alpha and modules are its own."""
    if (found := read_lora(directory)) != decoder.config.lora:
        raise InvalidValueError(f"{directory / CONFIG} has {found}", legal=f"{decoder.config.lora}")
    read_weights(decoder, adapter_parts(decoder.config), directory, weights=WEIGHTS, config=CONFIG)


def read_lora(directory: Path) -> LoraConfig:
    """Return what an adapter_config.json describes. Raises InvalidValueError, CheckpointError."""
    path = directory / CONFIG
    found = {"peft_type": None, **read_json(path)}
    for name, value in found.items():
        is_legal = value in ONLY[name] if name in ONLY else name in UNUSED or not value
        if not is_legal:
            legal = repr(ONLY[name][0]) if name in ONLY else "no such option"
            raise InvalidValueError(f"{name} {value!r:.60} of {path}", legal=legal)
    rank, alpha, targets = (found.get(name) for name in ("r", "lora_alpha", "target_modules"))
    if type(rank) is not int or rank < 1:
        raise InvalidValueError(f"r {rank!r:.60} of {path}", legal="a whole number, 1 or more")
    if not isinstance(alpha, int | float) or not 0 < alpha < 1e38:
        raise InvalidValueError(f"lora_alpha {alpha!r:.60} of {path}", legal="a number above 0")
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        raise InvalidValueError(f"target_modules {targets!r:.60} of {path}", legal="a list of names")
    return LoraConfig(rank, float(alpha), frozenset(targets))
