"""The weights of a version as files: all of them, or the adapters of a base that does not move, as peft has them.

    trainer ─to_files─▶ broadcasts/step_N ─from_files─▶ tensors by our names, and their digest

The digest is of every byte that a completion follows from, base and noise included.
"""

from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from harness.bits.files import read_regular
from harness.bits.tensor_digests import combined_digest, host_bytes, tensor_digests
from rlcore.asynchronous.directory import MAX_BYTES, held, path_of, publish
from rlcore.errors import CheckpointError
from rlcore.models import adapters
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder, is_adapter

WEIGHTS = "model.safetensors"
BASE, ALIGNMENT = "base", 64
"""File of a base, and what the addresses of its tensors are multiples of."""
NORMS = "norms.safetensors"
"""Norm weights of the samplers, where the trainer adds noise to them."""


def to_files(decoder: Decoder, norms: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Return the files of a decoder's weights, with the norm weights that samplers have instead of its own."""
    files = {NORMS: save(dict(norms))} if norms else {}
    if decoder.config.lora is None:
        return files | {WEIGHTS: save({name: each.detach().cpu() for name, each in decoder.named_parameters()})}
    with TemporaryDirectory() as directory:
        adapters.save(decoder, Path(directory))
        return files | {path.name: read_regular(path, max_bytes=MAX_BYTES) for path in Path(directory).iterdir()}


def from_files(read: Callable[[str], bytes], config: DecoderConfig, *, has_norms: bool) -> dict[str, Tensor]:
    """Return the tensors of a version by our names. Raises CheckpointError, and what `read` raises."""
    if config.lora is None:
        found = load(read(WEIGHTS))
    else:
        given, names = load(read(adapters.WEIGHTS)), {p.name: p.parameter for p in adapters.adapter_parts(config)}
        if wrong := sorted(given.keys() ^ names.keys()):
            raise CheckpointError(f"{adapters.WEIGHTS} has other tensors: {wrong[0]}", legal="those of its adapters")
        found = {names[name]: tensor for name, tensor in given.items()}
    return found | (load(read(NORMS)) if has_norms else {})


def map_base(parameters: Mapping[str, nn.Parameter], directory: Path) -> None:
    """Let the base of adapters be a mapped file, whose pages the processes of a machine share; on a CPU.

    The first process writes it. Nothing writes to a base, and each tensor begins where one of its own would. Raises
    CheckpointError in a directory that has another base.
    """
    sizes = [-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in parameters.values()]
    begins, content = [0, *accumulate(sizes)], bytearray(sum(sizes))
    for begin, each in zip(begins, parameters.values(), strict=False):
        content[begin : begin + each.nbytes] = host_bytes(each.detach()).cast("B")
    with held(directory, "base", lambda line: None):  # several processes write, where others have a name of their own
        publish(directory, 0, {BASE: bytes(content)})
    mapped = torch.from_file(str(path_of(directory, 0) / BASE), shared=False, size=len(content), dtype=torch.uint8)
    for begin, each in zip(begins, parameters.values(), strict=False):
        each.data = mapped[begin : begin + each.nbytes].view(each.dtype).view(each.shape)


class Digests:
    """Digests of a decoder's weights; those of a base that does not move are made once."""

    def __init__(self, decoder: Decoder) -> None:
        named = dict(decoder.named_parameters())
        self._frozen = tensor_digests({n: named[n] for n in named if decoder.config.lora and not is_adapter(n)})

    def of(self, decoder: Decoder, norms: Mapping[str, Tensor]) -> str:
        """Return one digest for a decoder's weights, with other norm weights in place of its own."""
        moved = {n: each for n, each in decoder.named_parameters() if n not in self._frozen or n in norms}
        return combined_digest({**self._frozen, **tensor_digests({**moved, **norms})})
