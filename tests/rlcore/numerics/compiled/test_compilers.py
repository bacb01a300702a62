"""Bits follow from C and IEEE 754: another instruction set, optimisation or compiler changes none."""

import ctypes
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlcore.numerics.cases import with_gradients
from rlcore.numerics.compiled import layers, operations
from rlcore.numerics.compiled.differentiable import attend_cached, linear, rms_norm, swiglu
from rlcore.numerics.compiled.library import SIGNATURES, compile_into, compiler
from tests.rlcore.numerics.compiled.heads_drawn import Sizes, add_norm, drawn
from tests.rlcore.numerics.compiled.layers_drawn import LayerSizes, in_cache, whole

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

Compiled = Callable[..., ctypes.CDLL]
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of another processor")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """(flags, command) -> the kernels, compiled once a module."""
    directory = tmp_path_factory.mktemp("kernels")

    @cache
    def made(*flags: str, command: tuple[str, ...] = ()) -> ctypes.CDLL:
        kept = directory / f"{len(list(directory.iterdir()))}.so"
        compile_into(kept, command or compiler(), *flags)
        loaded = ctypes.CDLL(str(kept))
        for name, arguments in SIGNATURES.items():
            getattr(loaded, name).argtypes = arguments
        loaded.layer_keeps.restype = ctypes.c_long
        return loaded

    return made


def rows() -> list[Tensor]:
    """Norms and gates over forty orders of magnitude, and numbers that are not normal."""
    x = drawn(60, 44) * torch.logspace(-42, 18, 60)[:, None]
    gates, grad = torch.linspace(-100, 100, 60 * 88).view(60, 88), drawn(60, 44, seed=1)
    return [
        *with_gradients(lambda a, b: rms_norm(a, b, 1e-6), grad, x, drawn(44, seed=2)),
        *with_gradients(add_norm, drawn(60, 88, seed=3), x, grad, drawn(44, seed=2)),
        *with_gradients(swiglu, grad, gates.flip(0)),
        *with_gradients(swiglu, grad, torch.cat((gates[:, :44], x), 1)),
    ]


def heads(sizes: Sizes) -> list[Tensor]:
    """A pass, its gradients, and the last positions behind a cache that has the others."""
    given = sizes.heads()
    made = with_gradients(sizes.attended(), sizes.grad(), given, *sizes.norms())
    keys, values = (x.nan_to_num() for x in sizes.cache(sizes.batch, 48))
    for part in (slice(0, 20), slice(20, None)):
        starts = torch.full((sizes.batch,), part.start)
        made.append(attend_cached(given[:, part].contiguous(), sizes.by(), starts, keys, values))
    return [*made, keys, values]


def products(rows: int, inputs: int, outputs: int) -> list[Tensor]:
    """With a bias."""
    x, weight, grad = drawn(rows, inputs), drawn(outputs, inputs, seed=1), drawn(rows, outputs, seed=2)
    return with_gradients(linear, grad, x, weight, drawn(outputs, seed=3))


def layer(sizes: LayerSizes) -> list[Tensor]:
    """A pass, its gradients, and the same in parts behind a cache."""
    x, length = sizes.stream(), sizes.heads.length
    made = sizes.gradients(whole, x, sizes.grad())
    y, keys, values = in_cache(sizes, whole, x, [length - 3, 2, 1])
    return [*made, y, keys[..., :length], values[:, :, :length]]


COMPUTED: dict[str, Callable[[], list[Tensor]]] = {
    "rows": rows,
    "heads of 32": partial(heads, Sizes(2, 37, 2, 3, 32, has_norms=True)),
    "heads of 80": partial(heads, Sizes(1, 26, 1, 4, 80, has_norms=False)),
    "products over all borders": partial(products, 201, 270, 541),
    "products of few rows": partial(products, 5, 19, 39),
    "layer over a block": partial(layer, LayerSizes(Sizes(6, 35, 1, 3, 16, has_norms=True), 44, 20, has_bias=True)),
    "layer over packs": partial(layer, LayerSizes(Sizes(1, 19, 2, 2, 80, has_norms=False), 264, 300, has_bias=False)),
}


def differing(kernels: ctypes.CDLL) -> list[str]:
    """What these kernels give other bits of than those that models get; signs of zeros count."""
    found = {name: compute() for name, compute in COMPUTED.items()}
    assert not any(bool(x.isnan().any()) for tensors in found.values() for x in tensors)
    with pytest.MonkeyPatch.context() as patch:
        for module in (operations, layers):
            patch.setattr(module, "library", lambda: kernels)
        others = {name: compute() for name, compute in COMPUTED.items()}
    return [
        f"{name} {number}"
        for name, tensors in found.items()
        for number, (a, b) in enumerate(zip(tensors, others[name], strict=True))
        if not torch.equal(a.view(torch.int32), b.view(torch.int32))
    ]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("-O1",), id="less optimised"),
        pytest.param(("-O0", "-mno-avx512f"), id="halves of registers", marks=on_x86),
        pytest.param(("-O0", "-mno-fma", "-mno-avx2"), id="libm's fmaf", marks=on_x86),
    ],
)
def test_bits_do_not_follow_from_flags(compiled: Compiled, flags: tuple[str, ...]) -> None:
    assert not differing(compiled(*flags))


def another_compiler() -> tuple[str, ...]:
    """Of another family than the one taken here: gcc, or clang, which ziglang is too. Skips where there is none."""
    taken = " ".join(compiler())
    said = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    if "clang" in said or "zig" in taken:
        return (shutil.which("gcc") or pytest.skip("gcc is not installed"),)
    if path := shutil.which("clang"):
        return (path,)
    if importlib.util.find_spec("ziglang"):
        return sys.executable, "-m", "ziglang", "cc"
    pytest.skip("neither clang nor ziglang is installed")


def test_bits_do_not_follow_from_the_compiler(compiled: Compiled) -> None:
    assert not differing(compiled("-O1", command=another_compiler()))


# ----------------------------------------------------------------------------------- and what would change them is seen


@on_x86
def test_contraction_gives_other_bits(compiled: Compiled) -> None:
    """The flag that turns it off is needed, and the comparison sees where it is not there."""
    if "fma" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no fused instruction to contract to")
    contracted = compiled("-O1", "-fexpensive-optimizations", "-ffp-contract=fast")
    assert {each.rpartition(" ")[0] for each in differing(contracted)} >= {"heads of 32", "heads of 80"}
