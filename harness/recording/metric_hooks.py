"""Hooks that take the curve from what TensorBoard and transformers' trainers are given."""

import functools
from types import ModuleType
from typing import Any

from harness.recording.active import active_log
from harness.recording.metrics import floats


def hook_tensorboard(module: ModuleType) -> None:
    """See the scalars that a SummaryWriter is given."""
    original = module.SummaryWriter.add_scalar

    @functools.wraps(original)
    def add_scalar(writer: Any, tag: str, scalar_value: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(writer, tag, scalar_value, *args, **kwargs)
        if (log := active_log()) is not None:
            log.log_values(floats({tag.removeprefix("train/"): scalar_value}))
        return result

    module.SummaryWriter.add_scalar = add_scalar


def hook_trainer(module: ModuleType) -> None:
    """See what a transformers Trainer, or one of TRL's, logs."""
    original = module.CallbackHandler.on_log

    @functools.wraps(original)
    def on_log(handler: Any, args: Any, state: Any, control: Any, logs: Any, *more: Any, **kwargs: Any) -> Any:
        if (log := active_log()) is not None:
            log.log_values(floats(logs))
        return original(handler, args, state, control, logs, *more, **kwargs)

    module.CallbackHandler.on_log = on_log
