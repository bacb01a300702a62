"""Weights as files: what travels, what is read back, and a base that processes share."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from rlcore.asynchronous.broadcast import BASE, NORMS, WEIGHTS, Digests, from_files, map_base, to_files
from rlcore.asynchronous.directory import path_of, publish, read
from rlcore.errors import CheckpointError
from rlcore.models import adapters
from rlcore.models.config import DecoderConfig, LoraConfig
from rlcore.models.decoder import Decoder, is_adapter

CONFIG = DecoderConfig("qwen2", 30, 32, 2, 2, 1, 16, 64, max_length=64)
LORA = LoraConfig(4, 8.0, frozenset({"q_proj", "down_proj"}))


def base() -> Decoder:
    return Decoder(CONFIG).initialise(1).requires_grad_(False)


def with_adapters(seed: int) -> Decoder:
    decoder = adapters.attach(base(), LORA, seed)
    with torch.no_grad():
        for name, each in decoder.named_parameters():
            if is_adapter(name):
                each.normal_(generator=torch.Generator().manual_seed(seed))
    return decoder


@pytest.mark.parametrize("has_adapters", [False, True])
def test_a_version_is_read_as_it_was_written_and_its_digest_covers_every_byte(
    tmp_path: Path, has_adapters: bool
) -> None:
    decoder = with_adapters(1) if has_adapters else base()
    norms = {name: each + 1 for name, each in decoder.named_parameters() if name.endswith("norm")}
    for step, given in enumerate(({}, norms)):
        publish(tmp_path, step, to_files(decoder, given))
        names = {path.name for path in path_of(tmp_path, step).iterdir()} - {"STABLE"}
        assert names == ({adapters.WEIGHTS, adapters.CONFIG} if has_adapters else {WEIGHTS}) | (
            {NORMS} if given else set()
        )
        found = from_files(partial(read, tmp_path, step), decoder.config, has_norms=bool(given))
        named = {n: each for n, each in decoder.named_parameters() if is_adapter(n) or not has_adapters} | dict(given)
        assert found.keys() == named.keys() and all(torch.equal(found[name], named[name]) for name in named)
    digests, seen = Digests(decoder), {Digests(decoder).of(decoder, {}), Digests(decoder).of(decoder, norms)}
    assert len(seen) == 2
    with torch.no_grad():
        for name, each in decoder.named_parameters():
            each.view(-1)[-1] += 1
            own = Digests(decoder) if has_adapters and not is_adapter(name) else digests
            seen.add(own.of(decoder, {}))
            each.view(-1)[-1] -= 1
    assert len(seen) == 2 + len(list(decoder.parameters()))


def test_adapters_of_other_modules_are_refused(tmp_path: Path) -> None:
    publish(tmp_path, 0, to_files(with_adapters(1), {}))
    other = adapters.attach(base(), LoraConfig(4, 8.0, frozenset({"q_proj"})), 1)
    with pytest.raises(CheckpointError, match="down_proj"):
        from_files(partial(read, tmp_path, 0), other.config, has_norms=False)


def test_a_base_is_mapped_once_and_keeps_its_bits(tmp_path: Path) -> None:
    decoder, expected = with_adapters(1), dict(base().named_parameters())
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        before = decoder(tokens)
    frozen = {name: each for name, each in decoder.named_parameters() if not is_adapter(name)}
    map_base(frozen, tmp_path / BASE)
    other = base()
    map_base(dict(other.named_parameters()), tmp_path / BASE)
    with torch.no_grad():
        assert torch.equal(decoder(tokens), before)
    for model in (decoder, other):
        for name, each in model.named_parameters():
            if not is_adapter(name):
                assert torch.equal(each, expected[name]) and each.data_ptr() % 64 == 0
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert len(maps) == 2
    assert all(any(_holds(line, each) for line in maps) for each in frozen.values())
    loss = decoder(tokens).sum()
    loss.backward()
    assert all((each.grad is not None) == is_adapter(name) for name, each in decoder.named_parameters())
    changed = Decoder(CONFIG).initialise(2)
    with pytest.raises(CheckpointError, match="was made before, with other bits"):
        map_base(dict(changed.named_parameters()), tmp_path / BASE)


def _holds(line: str, tensor: torch.Tensor) -> bool:
    begin, end = (int(each, 16) for each in line.split(maxsplit=1)[0].split("-"))
    return begin <= tensor.data_ptr() < end


PROGRAM = """
import sys, time
from pathlib import Path
from rlcore.asynchronous.broadcast import BASE, map_base
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
decoder = Decoder(DecoderConfig("qwen2", 30, 512, 8, 8, 8, 64, 2048, max_length=64)).initialise(1)
map_base(dict(decoder.named_parameters()), Path(sys.argv[1]) / BASE)
print(sum(float(each.sum()) for each in decoder.parameters()), flush=True)
sys.stdin.read()
"""


@pytest.mark.full
def test_two_processes_hold_one_copy_of_a_base(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        assert len({each.stdout.readline() for each in both if each.stdout}) == 1
        for each in both:
            parts = Path(f"/proc/{each.pid}/smaps").read_text().split(str(tmp_path / BASE))[1:]
            lines = [line.split() for part in parts for line in part.partition("VmFlags")[0].splitlines()[1:]]
            sizes = {
                name: sum(int(line[1]) for line in lines if line[0] == f"{name}:")
                for name in ("Rss", "Pss", "Private_Dirty")
            }
            assert sizes["Private_Dirty"] == 0 and sizes["Pss"] <= 0.6 * sizes["Rss"], sizes
            assert sizes["Rss"] * 1024 > 0.9 * os.stat(path_of(tmp_path / BASE, 0) / BASE).st_size
    finally:
        for each in both:
            each.communicate("")
