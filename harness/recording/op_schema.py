"""Reads from an operator's schema which arguments it writes, and which it only views differently.

What schemas do not say stands in tables here: operators that overwrite without reading, that write without declaring
it, that return uninitialized memory, or that are not finished when they return.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

FACTORIES_UNWRITTEN = frozenset(
    ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize", "resize_")
)
"""Their result is whatever the memory held: not a value."""
SHAPE_ONLY = frozenset(
    (
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
    )
)
"""They ask their argument for its shape, dtype and device, and not for its value."""
ENTRANCES = frozenset(("lift", "lift_fresh", "lift_fresh_copy"))
"""Through which Python values become tensors: views by their schema, and the first sight of what they hold."""
OVERWRITES = frozenset(
    (
        *("recv_", "recv_any_source_", "irecv", "wait_tensor"),
        *("copy_", "_foreach_copy_", "fill_", "zero_", "_foreach_zero_", "set_", "resize_", "resize_as_"),
        *("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"),
        *("arange_", "eye_"),
    )
)
"""What their written argument held before has no part in what it holds afterwards."""
OUTPUT_NAMES = ("out", "result", "all_gather_output")
"""With which the names of arguments begin that are there to be written to."""
UNDECLARED_WRITES = {
    "native_batch_norm": (3, 4),
    "cudnn_batch_norm": (3, 4),
    "miopen_batch_norm": (3, 4),
    "all_gather_copy_in": (1,),
}
"""Positions of arguments that are written though the schema does not say so: running statistics, FSDP2's buffer."""
UNREAD_RESULTS = {
    "_scaled_dot_product_flash_attention": (6, 7, 8),
    "_scaled_dot_product_efficient_attention": (2, 3),
    "_scaled_dot_product_cudnn_attention": (6, 7, 8),
    "_flash_attention_forward": (2, 3, 4),
    "_efficient_attention_forward": (2, 3),
    "cudnn_batch_norm": (3,),
    "_batch_norm_with_update": (3,),
    "_cudnn_rnn": (4,),
    "mkldnn_rnn_layer": (3,),
    "all_gather_copy_in": (1,),
}
"""Positions of results that are working memory of the backward pass, written in part or not at all."""
COLLECTIVES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))
FINISHES = frozenset(("wait_tensor", "_wrap_tensor_autograd"))
SENDS = frozenset(("send", "isend", "barrier", "monitored_barrier_", "check_for_nan"))
"""Of COLLECTIVES, those that write to none of their arguments."""
IGNORED = frozenset(("profiler", "prim", "prims_symint", "debugprims"))
"""Namespaces whose operators compute nothing."""

Argument = int | str
"""A position, or the name of a keyword."""


@dataclass(frozen=True, slots=True)
class OpSchema:
    """What is to be known of one operator."""

    name: str
    """As traces spell it: "aten.addmm.default"."""
    is_ignored: bool = False
    is_view: bool = False
    """It gives another look at memory, and computes nothing."""
    is_entrance: bool = False
    is_unwritten: bool = False
    """Whether its results are uninitialized memory."""
    reads_shapes: bool = False
    """It asks its arguments for their shapes only."""
    is_unfinished: bool = False
    """Its results are not there yet when it returns: a collective."""
    is_waited_for: bool = False
    """An operation of its own says when they are there; else the program waits in a way that no operation shows."""
    is_random: bool = False
    """It draws from a generator of random numbers."""
    written: frozenset[Argument] = frozenset()
    """Positional arguments by position, the others by name."""
    overwritten: frozenset[Argument] = frozenset()
    """Arguments that held nothing before that has a part in anything afterwards."""
    unread_results: frozenset[int] = frozenset()


def schema_of(func: Any) -> OpSchema:
    """What an operator does; of a higher-order one, or one whose schema cannot be read, only its name."""
    if not isinstance(func, torch._ops.OpOverload):
        return OpSchema(f"{getattr(func, 'namespace', 'higher_order')}.{getattr(func, '__name__', func)}")
    namespace, short = func.namespace, func._schema.name.split("::")[-1]
    is_collective = namespace in COLLECTIVES
    written, overwritten = _written(func, short, is_collective=is_collective)
    return OpSchema(
        name=str(func),
        is_ignored=namespace in IGNORED,
        is_view=_is_view(func) and short not in ENTRANCES and not is_collective,
        is_entrance=short in ENTRANCES,
        is_unwritten=short in FACTORIES_UNWRITTEN,
        reads_shapes=short in SHAPE_ONLY,
        is_unfinished=is_collective and short not in FINISHES,
        is_waited_for=is_collective and namespace != "c10d" and short not in FINISHES,
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        written=written,
        overwritten=overwritten,
        unread_results=frozenset(UNREAD_RESULTS.get(short, ())),
    )


def _written(
    func: "torch._ops.OpOverload[..., Any]", short: str, *, is_collective: bool
) -> tuple[frozenset[Argument], frozenset[Argument]]:
    """(arguments that are written, those whose value before is lost)."""
    written: set[Argument] = set()
    overwritten: set[Argument] = set()
    for position, argument in enumerate(func._schema.arguments):
        key: Argument = argument.name if argument.kwarg_only else position
        is_declared = argument.alias_info is not None and argument.alias_info.is_write
        is_brought = is_collective and short not in SENDS and not argument.name.startswith("input")
        if is_declared or is_brought or position in UNDECLARED_WRITES.get(short, ()):
            written.add(key)
            if argument.name.startswith(OUTPUT_NAMES) or short in OVERWRITES:
                overwritten.add(key)
    return frozenset(written), frozenset(overwritten)


def _is_view(func: "torch._ops.OpOverload[..., Any]") -> bool:
    aliases = [result.alias_info for result in func._schema.returns]
    return any(alias is not None for alias in aliases) and not any(alias and alias.is_write for alias in aliases)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of an argument or a result, lists of them opened."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def named_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Argument, Any]]:
    """Each argument of a call, as OpSchema names them."""
    return [*enumerate(args), *kwargs.items()]


def generator_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator that a call names; None where it uses its device's own."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Generator):
            return value
    return None
