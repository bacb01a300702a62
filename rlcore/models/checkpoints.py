"""Hugging Face checkpoints: config.json and safetensors, in one file or in shards with an index, read and written.

Every parameter is read exactly once and nothing is left over, or nothing is loaded. Each file is written under a
temporary name and then renamed, the index and config.json last: a directory with a config.json is complete.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from harness.bits.files import check_regular, write_replacing
from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models.config import DecoderConfig, read_config, read_json, written_config
from rlcore.models.decoder import Decoder

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
SHARD_BYTES = 5_000_000_000
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16)}


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a checkpoint, and the rows of one of our parameters that it is."""

    name: str
    parameter: str
    first: int
    last: int


def hub_parts(config: DecoderConfig) -> Iterator[Part]:
    """Yield every tensor of a checkpoint. Queries, keys and values are one parameter here, gate and up another."""
    heads, kv_heads = (count * config.head_width for count in (config.num_heads, config.num_kv_heads))
    yield Part("model.embed_tokens.weight", "embedding", 0, config.vocab_size)
    for number in range(config.num_layers):
        theirs, ours = f"model.layers.{number}.", f"layers.{number}."
        yield Part(f"{theirs}input_layernorm.weight", f"{ours}attention_norm", 0, config.width)
        first = 0
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            place = first, first + rows
            yield Part(f"{theirs}self_attn.{name}_proj.weight", f"{ours}qkv", *place)
            if config.has_qkv_bias:
                yield Part(f"{theirs}self_attn.{name}_proj.bias", f"{ours}qkv_bias", *place)
            first += rows
        if config.has_qk_norm:
            for name in ("q_norm", "k_norm"):
                yield Part(f"{theirs}self_attn.{name}.weight", f"{ours}{name}", 0, config.head_width)
        yield Part(f"{theirs}self_attn.o_proj.weight", f"{ours}out", 0, config.width)
        yield Part(f"{theirs}post_attention_layernorm.weight", f"{ours}mlp_norm", 0, config.width)
        yield Part(f"{theirs}mlp.gate_proj.weight", f"{ours}gate_up", 0, config.ffn_width)
        yield Part(f"{theirs}mlp.up_proj.weight", f"{ours}gate_up", config.ffn_width, 2 * config.ffn_width)
        yield Part(f"{theirs}mlp.down_proj.weight", f"{ours}down", 0, config.width)
    yield Part("model.norm.weight", "norm", 0, config.width)
    if not config.is_tied:
        yield Part("lm_head.weight", "head", 0, config.vocab_size)


def hub_tensors(model: nn.Module, parts: Iterable[Part]) -> dict[str, Tensor]:
    """The weights under the names and in the shapes that transformers and vLLM load; views, not copies."""
    own = dict(model.named_parameters())
    return {part.name: own[part.parameter].detach()[part.first : part.last] for part in parts}


KNOWN_CONFIG = DecoderConfig("qwen2", 3, 4, 1, 2, 1, 2, 5, max_length=1, is_tied=False)
KNOWN_PARTS = "50cb245ac7b797881d4f21f28666f17b18c45cfb2af437e44d46b4fe3e65185c"
"""sha256 of where transformers has the tensors of that model: a table that a test spells out."""


def check_known_parts() -> None:
    """Check where tensors of a small checkpoint are written and read; raises CheckpointError.

    What is exchanged in writing and in reading alike, a round trip does not show.
    """
    parts = "".join(f"{part.name} {part.parameter} {part.first} {part.last}\n" for part in hub_parts(KNOWN_CONFIG))
    if sha256(parts.encode()).hexdigest() != KNOWN_PARTS:
        raise CheckpointError(
            f"tensors are not where transformers has them, but at\n{parts}",
            remedy="repair rlcore.models.checkpoints.hub_parts: other programs would read other weights",
        )


def load(directory: Path, *, dtype: torch.dtype | None = None, device: str = "cpu") -> Decoder:
    """The decoder of a checkpoint, in its own type or in `dtype`.

    Raises InvalidValueError for an architecture that is not supported, CheckpointError for weights that do not fit.
    """
    check_known_parts()
    found = read_json(directory / CONFIG)
    config = read_config(found)
    check_size(directory, config)
    decoder = Decoder(config).to(device, dtype or own_dtype(found))
    read_weights(decoder, hub_parts(config), directory)
    return decoder


def check_size(directory: Path, config: DecoderConfig) -> None:
    """Check that the files hold what the model needs, before memory is taken for it; raises CheckpointError."""
    num_bytes = 0
    for name in sorted({*_files(directory).values()}):
        with _opened(directory / name):
            num_bytes += (directory / name).stat().st_size
    if config.num_weights > num_bytes:  # a byte or more each
        raise CheckpointError(
            f"{directory / CONFIG} describes {config.num_weights:,} weights, and the files have {num_bytes:,} bytes",
            legal=f"the {CONFIG} of these weights",
            remedy="copy the checkpoint again",
        )


def read_weights(
    model: nn.Module, parts: Iterable[Part], directory: Path, *, weights: str = WEIGHTS, config: str = CONFIG
) -> None:
    """Read the parts of a model from a checkpoint. Raises CheckpointError for tensors that are not these."""
    files, targets = _files(directory, weights), hub_tensors(model, parts)
    has_head = weights == WEIGHTS and "lm_head.weight" not in targets
    ignored = {"lm_head.weight"} if has_head else set()  # some checkpoints keep a head that is the embedding
    missing, left = sorted(targets.keys() - files.keys()), sorted(files.keys() - targets.keys() - ignored)
    if missing or left:
        wrong = [f"{kind} {', '.join(some[:3])}" for kind, some in (("without", missing), ("with", left)) if some]
        place = directory if weights == WEIGHTS else directory / weights
        raise CheckpointError(
            f"{place} is {' and '.join(wrong)} ({len(missing)} missing, {len(left)} unexpected)",
            legal=f"the {len(targets)} tensors of the model its {config} describes",
        )
    for name, tensor in _tensors(directory, {name: files[name] for name in targets}):
        target = targets[name]
        if tensor.shape != target.shape:
            what = f"{name} is {tuple(tensor.shape)} in {directory / files[name]}"
            raise CheckpointError(what, legal=f"{tuple(target.shape)}, by {config}")
        target.copy_(tensor)


def _tensors(directory: Path, files: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors, file by file."""
    for file_name in sorted({*files.values()}):
        with _opened(directory / file_name) as file:
            for name in files:
                if files[name] == file_name:
                    yield name, file.get_tensor(name)


def save(decoder: Decoder, directory: Path) -> None:
    """Write config.json and the weights."""
    check_known_parts()
    dtype = str(decoder.embedding.dtype).removeprefix("torch.")
    tensors = hub_tensors(decoder, hub_parts(decoder.config))
    write(directory, tensors, written_config(decoder.config, dtype))


def write(directory: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write tensors and the content of config.json; in shards with an index where they are larger than SHARD_BYTES."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
    shards: list[dict[str, Tensor]] = []
    room_bytes = 0
    for name, tensor in tensors.items():
        if tensor.nbytes > room_bytes:
            shards.append({})
            room_bytes = SHARD_BYTES
        shards[-1][name] = tensor
        room_bytes -= tensor.nbytes
    for stale in (*directory.glob("model*.safetensors"), directory / INDEX):
        stale.unlink(missing_ok=True)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file_name = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_tensors(directory / file_name, shard)
        weight_map |= dict.fromkeys(shard, file_name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(each.nbytes for each in tensors.values())}, "weight_map": weight_map}
        write_replacing(directory / INDEX, json.dumps(index, indent=2))
    write_replacing(directory / CONFIG, json.dumps(config, indent=2))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, at first under a temporary name."""
    partial = path.with_suffix(".partial")
    save_file(dict(tensors), partial, metadata={"format": "pt"})
    partial.replace(path)


def own_dtype(found: Mapping[str, Any]) -> torch.dtype:
    """Return the type that a config.json names; raises InvalidValueError for one that is not read."""
    name = found.get("dtype") or found.get("torch_dtype") or "float32"
    if not isinstance(name, str) or name not in DTYPES:
        raise InvalidValueError(
            f"a checkpoint of {name!s:.60}",
            legal=", ".join(DTYPES),
            remedy="say which to convert to: dtype=torch.float32",
        )
    return DTYPES[name]


def _files(directory: Path, weights: str = WEIGHTS) -> dict[str, str]:
    """Tensor -> name of its file, as the index or the only file says."""
    if weights != WEIGHTS or not (directory / INDEX).is_file():
        with _opened(directory / weights) as file:
            return dict.fromkeys(file.keys(), weights)
    weight_map = read_json(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{directory / INDEX} has no weight_map", legal="the file of each tensor, by its name")
    for file_name in weight_map.values():
        if not isinstance(file_name, str) or "/" in file_name:
            raise CheckpointError(f"{directory / INDEX} names {file_name!r:.300}", legal="files beside it")
    return weight_map


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; CheckpointError where it is not one."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, ValueError, MemoryError, SafetensorError) as error:  # a ValueError: no file can have the name
        raise CheckpointError(f"{path} cannot be read: {error}", remedy="copy the checkpoint again") from error
