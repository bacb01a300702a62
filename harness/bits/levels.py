"""Variables that a level of determinism sets before the interpreter of a program starts. Pure, but for `is_intels`.

`off` sets nothing. `deterministic` (two runs of one configuration on one machine agree) sets the table below. Torch's
flags and the seeds need torch and are set by `recording/determinism.py`. A value that the user has set is kept if
it is suitable and refused if it is not; none is overridden.

`invariant` (bits depend on the configuration and the machine's numerics alone) cannot be had by variables: the program
has to hold it, and the entry of a scenario declares that it does. It sets the variables of `deterministic` that decide
how something is computed. Variables that decide how work is spread, such as the hash seed, are left as they are: they
must not move a bit.

`deterministic` does not cover what a program reads from its surroundings: the time, os.urandom, the order in which
threads or servers answer.
"""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from harness.bits.errors import UsageError
from harness.bits.files import read_text

OFF, DETERMINISTIC, INVARIANT = "off", "deterministic", "invariant"
FALSE = "(?i)false|0"
LEVELS = (OFF, DETERMINISTIC, INVARIANT)
STRICT = {"MKL_CBWR": "AUTO,STRICT"}
"""Variables of `invariant` on Intel's processors, over the table: MKL's strict mode, which exists only there.

Products then depend neither on threads nor on how many rows there are.
"""


CPU_INFO = "/proc/cpuinfo"


def is_intels() -> bool:
    """Whether this machine's processor is Intel's."""
    return os.path.exists(CPU_INFO) and "GenuineIntel" in read_text(CPU_INFO)


class Setting(NamedTuple):
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

    @property
    def legal(self) -> str:
        """The allowed values, in words."""
        return f"{self.name}={self.value}" + (f" or {self.others}" if self.others else "")

    def allows(self, value: str) -> bool:
        """Whether a user's value serves as well."""
        return value == self.value or bool(self.accepts and re.fullmatch(self.accepts, value))


# From verl's full determinism, Megatron's deterministic mode, vLLM's batch invariance, and the documents of Python,
# MKL, cuBLAS, NCCL, Transformer Engine and HCCL; what each of them reads is in MOVE_BITS.
SETTINGS = (
    Setting(
        "PYTHONHASHSEED",
        "0",
        "order of sets of strings",
        r"\d+",
        "another number",
        is_of_spreading=True,
    ),
    Setting(
        "OMP_DYNAMIC",
        "FALSE",
        "threads, and sums with them",
        FALSE,
        "0",
        is_of_spreading=True,
    ),
    Setting("MKL_DYNAMIC", "FALSE", "the same", FALSE, "0", is_of_spreading=True),
    Setting(
        "MKL_CBWR",
        "AUTO",
        "sums independent of alignment",
        "(?i)(?!off$).+",
        "any but OFF",
    ),
    # ":16:8", since verl and transformers set that in their processes, whose children would not have what they must.
    Setting(
        "CUBLAS_WORKSPACE_CONFIG",
        ":16:8",
        "one order of sums",
        ":4096:8",
        ":4096:8",
    ),
    Setting(
        "NCCL_ALGO",
        "Ring",
        "one order of reduction",
        "(?i)(allreduce:)?(ring|tree)",
        "Tree",
    ),
    Setting("NCCL_PROTO", "Simple", "the same", "(?i)simple|ll|ll128", "LL or LL128"),
    Setting("NCCL_NVLS_ENABLE", "0", "a switch adds in the order of arrival"),
    Setting("NCCL_COLLNET_ENABLE", "0", "the same"),
    Setting("HCCL_DETERMINISTIC", "true", "the same, on Ascend", "(?i)true|strict", "strict"),
    Setting("FLASH_ATTENTION_DETERMINISTIC", "1", "backward without atomics"),
    Setting("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0", "the same"),
    Setting("MAMBA_DETERMINISTIC", "1", "the same"),
    Setting("CAUSAL_CONV1D_DETERMINISTIC", "1", "the same"),
    Setting("PYTORCH_TUNABLEOP_ENABLED", "0", "no choice of kernels by measured time"),
    Setting("TORCHINDUCTOR_MAX_AUTOTUNE", "0", "the same"),
    Setting("TORCHINDUCTOR_DETERMINISTIC", "1", "the same"),
    Setting("VLLM_BATCH_INVARIANT", "1", "completions independent of other requests"),
)


MKL_AT_INVARIANT = Setting(
    "MKL_CBWR", "AUTO", "each of MKL's other modes gives other bits", "(?i)auto(,strict)?", "AUTO,STRICT"
)
"""In place of the table's: two runs in one mode agree, but at this level the mode must follow from the processor."""
OF_SPREADING = frozenset(setting.name for setting in SETTINGS if setting.is_of_spreading)
OF_THREADS = frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"})
"""Numbers of threads: they decide only how work is spread, and Ray sets the first to an actor's CPUs."""
OF_INSTRUCTIONS = frozenset(
    {"MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}
    | {"ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"}
)
"""They choose the kernels of a processor: at `invariant` none of them may be set."""
_OTHERS = """
NVIDIA_TF32_OVERRIDE CUBLASLT_WORKSPACE_SIZE CUDA_FORCE_PTX_JIT CUDA_DISABLE_PTX_JIT
CUBLAS_EMULATE_SINGLE_PRECISION CUBLAS_EMULATE_DOUBLE_PRECISION CUBLAS_EMULATION_STRATEGY
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT
TORCH_CUDNN_USE_HEURISTIC_MODE_B TORCH_CUDNN_V8_API_DISABLED
TORCH_CUDNN_SDPA_ENABLED TORCH_CUDNN_SDPA_DEPRIORITIZED
TORCHINDUCTOR_MAX_AUTOTUNE_GEMM TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE TORCHINDUCTOR_EMULATE_PRECISION_CASTS
NCCL_NTHREADS NCCL_BUFFSIZE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NVTE_FLASH_ATTN NVTE_FUSED_ATTN
VLLM_ATTENTION_BACKEND VLLM_ENABLE_V1_MULTIPROCESSING VLLM_USE_FLASHINFER_SAMPLER VERL_FULL_DETERMINISM
SGLANG_ENABLE_DETERMINISTIC_INFERENCE SGLANG_FLASHINFER_PREFILL_SPLIT_TILE_SIZE
SGLANG_FLASHINFER_DECODE_SPLIT_TILE_SIZE SGLANG_TRITON_PREFILL_TRUNCATION_ALIGN_SIZE
SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE
"""
# From torch's sources (those its libraries and torch/_inductor/config.py read), the lists of environment variables of
# NCCL, oneDNN, MKL, Transformer Engine and vLLM, Megatron's and verl's deterministic modes, and Python.
MOVE_BITS = OF_THREADS | OF_INSTRUCTIONS | {setting.name for setting in SETTINGS} | set(_OTHERS.split())
"""Every variable known to move the bits of a training run, set or not, and to what."""


class Conflict(NamedTuple):
    """Variables that exclude a level: values with reasons, legal values, remedy."""

    what: str
    legal: str
    remedy: str


def settings_of(level: str) -> tuple[Setting, ...]:
    """Return the variables of a level."""
    if level == OFF:
        return ()
    if level == DETERMINISTIC:
        return SETTINGS
    own = {MKL_AT_INVARIANT.name: MKL_AT_INVARIANT}
    return tuple(own.get(setting.name, setting) for setting in SETTINGS if not setting.is_of_spreading)


def conflict(level: str, environ: Mapping[str, str]) -> Conflict | None:
    """Return which variables of an environment exclude a level; None if none does."""
    found = [(s.name, s.reason, s.legal) for s in settings_of(level) if not s.allows(environ.get(s.name) or s.value)]
    if level == INVARIANT:
        chosen = sorted(name for name in OF_INSTRUCTIONS if environ.get(name))
        found += [(name, "it chooses other kernels of the processor", f"{name} not set") for name in chosen]
    if not found:
        return None
    values = "; ".join(f"{name}={environ[name]} ({reason})" for name, reason, _ in found)
    return Conflict(
        f"the level {level!r} conflicts with variables that are set: {values}",
        "; ".join(legal for *_, legal in found),
        "unset " + " ".join(name for name, *_ in found),
    )


def level_variables(
    level: str, environ: Mapping[str, str], *, is_held_by_entry: bool = False, is_intels: bool = False
) -> dict[str, str]:
    """Return every variable of the level: the user's value if the level allows it, else the level's.

    `is_held_by_entry`: the program is the entry of a scenario, which holds `invariant` itself; `is_intels`: the
    processor is Intel's. UsageError if variables conflict with the level (it names them all), if the level cannot be
    held from outside the program, or if the level does not exist.
    """
    if level not in LEVELS:
        raise UsageError(f"the level {level!r} does not exist", legal=", ".join(LEVELS))
    if level == INVARIANT and not is_held_by_entry:
        raise UsageError(
            f"the level {INVARIANT!r} cannot be guaranteed for a program that rlharness does not control: its bits may"
            " depend on threads, batches and the order of arrival",
            legal=f"{OFF}, {DETERMINISTIC}",
            remedy=f"--level {DETERMINISTIC} sets environment variables and torch's determinism flags",
        )
    if found := conflict(level, environ):
        raise UsageError(found.what, legal=found.legal, remedy=found.remedy)
    values = {s.name: s.value for s in settings_of(level)} | (STRICT if level == INVARIANT and is_intels else {})
    return {name: environ.get(name) or value for name, value in values.items()}
