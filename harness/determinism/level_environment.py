"""Variables that a level of determinism sets before the interpreter of a program starts. Pure.

`off` sets nothing. `deterministic` (two runs of one configuration on one machine agree) sets the table below. Torch's
flags and the seeds need torch and are set by `recording/determinism_flags.py`. A value that the user has set is kept if
it is suitable and refused if it is not; none is overridden.

`invariant` (bits depend on the configuration alone) cannot be had by variables: the program has to hold it, and the
entry of a scenario declares that it does. It sets the variables of `deterministic` that decide how something is
computed. Variables that decide how work is spread, such as the hash seed, are left alone: they must not move a bit.

`deterministic` does not cover what a program reads from its surroundings: the time, os.urandom, the order in which
threads or servers answer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.core.errors import UsageError

OFF, DETERMINISTIC, INVARIANT = "off", "deterministic", "invariant"
FALSE = "(?i)false|0"
STRICT = {"MKL_CBWR": "AUTO,STRICT"}
"""Variables of `invariant` on Intel's processors, over the table: MKL's strict mode, which exists only there.

Products then depend neither on threads nor on how many rows there are.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable of a level."""

    name: str
    value: str
    reason: str
    accepts: str = ""
    """Regular expression of further suitable values; empty: `value` alone."""
    others: str = ""
    """The same in words."""
    is_of_spreading: bool = False
    """Whether it settles how work is spread, not how it is computed: of no matter at `invariant`."""
    is_left_to_entry: bool = False
    """Whether the entry of a scenario decides on it, for itself and for the processes that it starts."""

    @property
    def legal(self) -> str:
        """The allowed values, in words."""
        return f"{self.name}={self.value}" + (f" or {self.others}" if self.others else "")

    def allows(self, value: str) -> bool:
        """Whether a user's value serves as well."""
        return value == self.value or bool(self.accepts and re.fullmatch(self.accepts, value))


# From verl's full determinism, Megatron's deterministic mode, vLLM's batch invariance, and the documents of Python,
# MKL, cuBLAS, NCCL, Transformer Engine and HCCL; what each of them reads is in variables.py.
SETTINGS = (
    Setting(
        "PYTHONHASHSEED",
        "0",
        "it sets the order of sets of strings, and of batches made from them",
        r"\d+",
        "another number",
        is_of_spreading=True,
    ),
    Setting(
        "OMP_DYNAMIC",
        "FALSE",
        "OpenMP must not change the number of threads, and sums with it",
        FALSE,
        "0",
        is_of_spreading=True,
    ),
    Setting("MKL_DYNAMIC", "FALSE", "MKL must not change the number of threads", FALSE, "0", is_of_spreading=True),
    Setting(
        "MKL_CBWR",
        "AUTO",
        "without it MKL's sums may depend on memory alignment",
        "(?i)(?!off$).+",
        "any but OFF",
    ),
    # ":16:8", since verl and transformers set that in their processes, whose children would not have what they must.
    Setting(
        "CUBLAS_WORKSPACE_CONFIG",
        ":16:8",
        "cuBLAS adds in one order only in a workspace of its own",
        ":4096:8",
        ":4096:8",
    ),
    Setting(
        "NCCL_ALGO",
        "Ring",
        "one order of reduction, not the one that is measured to be fast",
        "(?i)(allreduce:)?(ring|tree)",
        "Tree",
    ),
    Setting("NCCL_PROTO", "Simple", "the same", "(?i)simple|ll|ll128", "LL or LL128"),
    Setting("NCCL_NVLS_ENABLE", "0", "the GPUs add, not the switch, which adds in the order of arrival"),
    Setting("NCCL_COLLNET_ENABLE", "0", "the same, for switches of InfiniBand"),
    Setting("HCCL_DETERMINISTIC", "true", "the same, on Ascend", "(?i)true|strict", "strict"),
    Setting("FLASH_ATTENTION_DETERMINISTIC", "1", "without it FlashAttention's backward adds with atomics"),
    Setting("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0", "Transformer Engine's attention does too"),
    Setting("MAMBA_DETERMINISTIC", "1", "the backward of Mamba's kernels does too"),
    Setting("CAUSAL_CONV1D_DETERMINISTIC", "1", "the backward of causal-conv1d does too"),
    Setting("PYTORCH_TUNABLEOP_ENABLED", "0", "the kernel that is fastest today may not be tomorrow"),
    Setting("TORCHINDUCTOR_MAX_AUTOTUNE", "0", "the same, for what torch.compile makes"),
    Setting("TORCHINDUCTOR_DETERMINISTIC", "1", "torch.compile measures nothing that decides on numerics"),
    Setting(
        "VLLM_BATCH_INVARIANT",
        "1",
        "a completion must not depend on which requests were served beside it",
        is_left_to_entry=True,
    ),
)


def level_variables(
    level: str, environ: Mapping[str, str], *, is_held_by_entry: bool = False, is_intels: bool = False
) -> dict[str, str]:
    """Return every variable of the level: the user's value if the level allows it, else the level's.

    `is_held_by_entry`: the program is the entry of a scenario, which holds `invariant` itself; `is_intels`: the
    processor is Intel's. UsageError if variables conflict with the level (it names them all), if the level cannot be
    held from outside the program, or if the level does not exist.
    """
    if level == OFF:
        return {}
    if level == INVARIANT and not is_held_by_entry:
        raise UsageError(
            f"the level {INVARIANT!r} cannot be guaranteed for a program that rlharness does not control: its bits may"
            " depend on threads, batches and the order of arrival",
            legal=f"{OFF}, {DETERMINISTIC}",
            remedy=f"--level {DETERMINISTIC} sets environment variables and torch's determinism flags",
        )
    if level not in (DETERMINISTIC, INVARIANT):
        raise UsageError(f"the level {level!r} does not exist", legal=f"{OFF}, {DETERMINISTIC}, {INVARIANT}")
    settings = [
        setting
        for setting in SETTINGS
        if (level == DETERMINISTIC or not setting.is_of_spreading)
        and not (is_held_by_entry and setting.is_left_to_entry)
    ]
    conflicts = [s for s in settings if environ.get(s.name) and not s.allows(environ[s.name])]
    if conflicts:
        raise UsageError(
            f"the level {level!r} conflicts with variables that are set: "
            + "; ".join(f"{s.name}={environ[s.name]} ({s.reason})" for s in conflicts),
            legal="; ".join(s.legal for s in conflicts),
            remedy="unset " + " ".join(s.name for s in conflicts),
        )
    values = {s.name: s.value for s in settings} | (STRICT if level == INVARIANT and is_intels else {})
    return {name: environ.get(name) or value for name, value in values.items()}
