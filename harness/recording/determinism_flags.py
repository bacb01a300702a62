"""What a level switches on in a process that has just imported torch, and whether it took effect.

Variables, which must be there before the interpreter starts, are in harness/bits/levels.py. Importing this
imports nothing heavy: a program may have numpy and never torch.
"""

import random
from types import ModuleType

from harness.bits.levels import DETERMINISTIC

SEED = 0
"""For generators that the program does not seed itself."""


def set_flags(level: str) -> tuple[str, ...]:
    """Set the determinism flags of the level for torch and Python's generator; return those without effect.

    Operations without a deterministic implementation warn and run: if their results differ, the traces show it.
    """
    if level != DETERMINISTIC:
        return ()
    import torch

    # Not use_deterministic_algorithms: it imports the compiler, which TORCHINDUCTOR_DETERMINISTIC has told already.
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    from harness.recording.deterministic_attention import make_attention_deterministic

    make_attention_deterministic()
    torch.manual_seed(SEED)
    random.seed(SEED)
    return without_effect()


def seed_numpy(numpy_random: ModuleType, level: str) -> None:
    """The same for numpy's global generator, once numpy.random has been imported."""
    if level == DETERMINISTIC:
        numpy_random.seed(SEED)


def without_effect() -> tuple[str, ...]:
    """What of the switches an operation shows not to be on; draws nothing from any generator."""
    import torch

    found = []
    if not bool(torch.empty(4).isnan().all()):  # deterministic mode fills what nobody has written
        found.append("torch.set_deterministic_debug_mode")
    if torch.initial_seed() != SEED:
        found.append("torch.manual_seed")
    if torch.backends.cudnn.benchmark or not torch.backends.cudnn.deterministic:
        found.append("torch.backends.cudnn")
    from harness.recording.deterministic_attention import is_attention_deterministic

    if not is_attention_deterministic():
        found.append("torch.nn.functional.scaled_dot_product_attention")
    return tuple(found)
