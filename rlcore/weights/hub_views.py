"""The weights of a model that vLLM built, under the names and in the shapes of its checkpoint: views of fused tensors.

    qkv_proj [q + k + v rows, width] ─▶ q_proj, k_proj, v_proj        gate_up_proj ─▶ gate_proj, up_proj

Nothing of vLLM is imported: its modules are recognised by what they have. What has no such view is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from rlcore.errors import InvalidValueError

PACKED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Of models that do not name theirs, in `packed_modules_mapping`."""


def hub_views(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model as its checkpoint has them; views, not copies.

    Tied parameters have each of their names. Raises InvalidValueError for weights in a form that only kernels read:
    packed, quantised, sharded over GPUs, or with LoRA adapters apart.
    """
    packed: Mapping[str, Sequence[str]] = {**PACKED, **(getattr(model, "packed_modules_mapping", None) or {})}
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if own:
            _check_plain(path, module, own)
        parent, _, last = path.rpartition(".")
        for name, parameter in own.items():
            if last in packed:
                prefix = f"{parent}." if parent else ""
                for part, view in _parts(path, module, parameter.detach(), packed[last]):
                    found[f"{prefix}{part}.{name}"] = view
            else:
                found[f"{path}.{name}" if path else name] = _without_padding(module, parameter.detach())
    return found


def _check_plain(path: str, module: nn.Module, own: Mapping[str, Tensor]) -> None:
    method = type(getattr(module, "quant_method", None)).__name__
    if "base_layer" in path.split(".") or hasattr(module, "lora_a_stacked"):
        raise _refused(path, "has LoRA adapters beside it", "merge the adapters into the weights that are sent")
    if method != "NoneType" and not method.startswith("Unquantized"):
        raise _refused(path, f"is quantised ({method})", "compare log-probabilities: the canary alone")
    if int(getattr(module, "tp_size", 1)) > 1:
        raise _refused(path, f"is a shard of {module.tp_size}", "compare log-probabilities: the canary alone")
    for name, parameter in own.items():
        if not parameter.numel():
            raise _refused(
                path,
                f"has an empty {name}: its kernel keeps a packed copy",
                "compare log-probabilities; on a CPU build the engine with vllm._custom_ops._supports_onednn = False",
            )


def _parts(path: str, module: Any, fused: Tensor, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a fused parameter, which its rows are in their order."""
    sizes = _part_sizes(module)
    if len(sizes) != len(names) or sum(sizes) != len(fused):
        raise _refused(path, f"has {len(fused)} rows for parts of {sizes}", "compare log-probabilities")
    for part, end, size in zip(names, accumulate(sizes), sizes, strict=True):
        yield part, fused[end - size : end]


def _part_sizes(module: Any) -> list[int]:
    if hasattr(module, "num_kv_heads") and hasattr(module, "head_size"):
        value_width = int(getattr(module, "v_head_size", module.head_size))
        heads, kv_heads = int(module.num_heads), int(module.num_kv_heads)
        return [heads * int(module.head_size), kv_heads * int(module.head_size), kv_heads * value_width]
    return [int(size) for size in getattr(module, "output_sizes", ())]


def _without_padding(module: Any, parameter: Tensor) -> Tensor:
    """Return the rows of a vocabulary that a checkpoint has: vLLM fills it up to a multiple of 64."""
    size = getattr(module, "org_vocab_size", None)
    return parameter[: int(size)] if size is not None and len(parameter) > int(size) else parameter


def _refused(path: str, what: str, remedy: str) -> InvalidValueError:
    return InvalidValueError(f"digests of {path}: it {what}", legal="weights as a checkpoint has them", remedy=remedy)
