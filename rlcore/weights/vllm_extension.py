"""What vLLM's workers answer about their weights, in whatever trainer's server they are.

    vllm serve MODEL --worker-extension-cls rlcore.weights.vllm_extension.WeightAnswers

Every worker then has `weight_digests` for `collective_rpc`, under the names and in the shapes of its checkpoint: views
of fused tensors.

    qkv_proj [q + k + v rows, width] ─▶ q_proj, k_proj, v_proj        gate_up_proj ─▶ gate_proj, up_proj

Nothing of vLLM is imported: its modules are recognised by what they have. What has no such view is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import tensor_digests
from rlcore.errors import InvalidValueError

PACKED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Of models that do not name theirs in `packed_modules_mapping`."""
CANARY_ALONE = "compare log-probabilities: the canary alone"


class WeightAnswers:
    """Mixed into vLLM's worker class, which has the model runner."""

    model_runner: Any

    def weight_digests(self, names: Sequence[str]) -> dict[str, Any]:
        """Return {"digests": {name: digest}} for the names that there are, or {"refused", "legal", "remedy"}."""
        try:
            views = hub_views(self.model_runner.get_model())
            return {"digests": tensor_digests({name: views[name] for name in names if name in views})}
        except InvalidValueError as error:
            return {"refused": error.what, "legal": error.legal, "remedy": error.remedy}


def hub_views(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model as its checkpoint has them; views, not copies.

    Tied parameters have each of their names. Raises InvalidValueError for weights in a form that only kernels read:
    packed, quantised, sharded over GPUs, or with LoRA adapters apart.
    """
    packed = {**PACKED, **(getattr(model, "packed_modules_mapping", None) or {})}
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        parent, _, last = path.rpartition(".")
        for name, parameter in module.named_parameters(recurse=False):
            _check_plain(path, module, name, parameter)
            parts, prefix = {last: parameter.detach()}, f"{parent}." if parent else ""
            if last in packed:
                sizes = _part_sizes(module)
                if len(sizes) != len(packed[last]) or sum(sizes) != len(parameter):
                    raise _refused(path, f"has {len(parameter)} rows for parts of {sizes}")
                parts = dict(zip(packed[last], torch.split(parameter.detach(), sizes), strict=True))
            elif (size := getattr(module, "org_vocab_size", None)) is not None:  # vLLM pads to a multiple of 64
                parts[last] = parameter.detach()[: int(size)]
            for part, view in parts.items():
                found[f"{prefix}{part}.{name}" if path else name] = view
    return found


def _check_plain(path: str, module: Any, name: str, parameter: Tensor) -> None:
    method = type(getattr(module, "quant_method", None)).__name__
    if "base_layer" in path.split(".") or hasattr(module, "lora_a_stacked"):
        raise _refused(path, "has LoRA adapters beside it", "merge the adapters into the weights that are sent")
    if method != "NoneType" and not method.startswith("Unquantized"):
        raise _refused(path, f"is quantised ({method})")
    if int(getattr(module, "tp_size", 1)) > 1:
        raise _refused(path, f"is a shard of {module.tp_size}")
    if not parameter.numel():
        remedy = "on a CPU build the engine with vllm._custom_ops._supports_onednn = False"
        raise _refused(path, f"has an empty {name}: its kernel keeps a packed copy", f"{CANARY_ALONE}; {remedy}")


def _part_sizes(module: Any) -> list[int]:
    """Return the rows of the parts of a fused parameter, in their order."""
    if hasattr(module, "num_kv_heads") and hasattr(module, "head_size"):
        value_width = int(getattr(module, "v_head_size", module.head_size))
        heads, kv_heads = int(module.num_heads), int(module.num_kv_heads)
        return [heads * int(module.head_size), kv_heads * int(module.head_size), kv_heads * value_width]
    return [int(size) for size in getattr(module, "output_sizes", ())]


def _refused(path: str, what: str, remedy: str = CANARY_ALONE) -> InvalidValueError:
    return InvalidValueError(f"digests of {path}: it {what}", legal="weights as a checkpoint has them", remedy=remedy)
