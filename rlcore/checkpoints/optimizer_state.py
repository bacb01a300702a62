"""Converts an optimizer's state to named tensors and back, bitwise: for checkpoints and recorders."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from rlcore.errors import CheckpointError, InvalidValueError

STEP = "step"


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, nn.Parameter]]
) -> dict[str, Tensor]:
    """ "layers.0.qkv.exp_avg" and so on: each tensor of the state under its parameter's name, live, not copied.

    The step count is one of them. A parameter that has had no step has none. Raises InvalidValueError for a parameter
    without a name, and for state that is no tensor.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in _held(optimizer, named_parameters).items():
        for kind, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                raise InvalidValueError(
                    f"{name}: its {kind} is a {type(value).__name__}", legal="tensors, as AdamW has"
                )
            tensors[f"{name}.{kind}"] = value
    return tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    tensors: Mapping[str, Tensor],
) -> None:
    """Give the optimizer this state, copied, in place of its own; types as they are, not the parameter's.

    Rates and coefficients are not part of it: they follow from the configuration. Raises CheckpointError where the
    state is of other parameters, or of other shapes, before anything is changed.
    """
    held = _held(optimizer, named_parameters)
    states: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, kind = key.rpartition(".")
        if name not in held:
            raise CheckpointError(f"optimizer state of {name}", legal=f"state of the parameters {', '.join(held)}")
        device, shape = held[name].device, held[name].shape
        if kind != STEP and value.shape != shape:
            raise CheckpointError(f"{key} is {list(value.shape)}", legal=f"{list(shape)}, as its parameter")
        # AdamW counts steps on the CPU, whatever the device: only what is computed with a parameter lies beside it.
        states.setdefault(name, {})[kind] = value.detach().clone().to("cpu" if kind == STEP else device)
    kinds = {kind for state in states.values() for kind in state}
    for name, state in states.items():
        if missing := kinds - state.keys():
            raise CheckpointError(f"optimizer state of {name} without {', '.join(sorted(missing))}")
    optimizer.state.clear()
    for name, state in states.items():
        optimizer.state[held[name]] = state


def _held(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, nn.Parameter]]
) -> dict[str, nn.Parameter]:
    """The optimizer's parameters by name, in its own order."""
    names = {parameter: name for name, parameter in named_parameters}
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if unnamed := [parameter for parameter in own if parameter not in names]:
        raise InvalidValueError(
            f"the optimizer moves {len(unnamed)} parameters without a name", legal="parameters of the model named here"
        )
    return {names[parameter]: parameter for parameter in own}
