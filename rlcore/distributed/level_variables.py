"""Variables that a level of determinism needs in every process before its interpreter starts. Pure, without torch.

rlcore runs without rlharness, and sets them for its own processes. A test holds this table to that of
harness/determinism, which sets them for a run's first process and has the reason of each.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from rlcore.config import LEVELS
from rlcore.errors import InvalidValueError, LevelError


class LevelVariable(NamedTuple):
    """A variable of levels `deterministic` and `invariant`."""

    value: str
    accepts: str = ""
    """Regular expression of further suitable values; empty: `value` alone."""
    others: str = ""
    """The same in words."""

    def allows(self, value: str) -> bool:
        """Whether a user's value serves as well."""
        return value == self.value or bool(self.accepts and re.fullmatch(self.accepts, value))


FALSE = "(?i)false|0"
LEVEL_VARIABLES: Mapping[str, LevelVariable] = {
    "PYTHONHASHSEED": LevelVariable("0", r"\d+", "another number"),
    "OMP_DYNAMIC": LevelVariable("FALSE", FALSE, "0"),
    "MKL_DYNAMIC": LevelVariable("FALSE", FALSE, "0"),
    "MKL_CBWR": LevelVariable("AUTO", "(?i)(?!off$).+", "any but OFF"),
    "CUBLAS_WORKSPACE_CONFIG": LevelVariable(":16:8", ":4096:8", ":4096:8"),
    "NCCL_ALGO": LevelVariable("Ring", "(?i)(allreduce:)?(ring|tree)", "Tree"),
    "NCCL_PROTO": LevelVariable("Simple", "(?i)simple|ll|ll128", "LL or LL128"),
    "NCCL_NVLS_ENABLE": LevelVariable("0"),
    "NCCL_COLLNET_ENABLE": LevelVariable("0"),
    "HCCL_DETERMINISTIC": LevelVariable("true", "(?i)true|strict", "strict"),
    "FLASH_ATTENTION_DETERMINISTIC": LevelVariable("1"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": LevelVariable("0"),
    "MAMBA_DETERMINISTIC": LevelVariable("1"),
    "CAUSAL_CONV1D_DETERMINISTIC": LevelVariable("1"),
    "PYTORCH_TUNABLEOP_ENABLED": LevelVariable("0"),
    "TORCHINDUCTOR_MAX_AUTOTUNE": LevelVariable("0"),
    "TORCHINDUCTOR_DETERMINISTIC": LevelVariable("1"),
    "VLLM_BATCH_INVARIANT": LevelVariable("1"),
}
"""By name."""
OF_SPREADING = frozenset({"PYTHONHASHSEED", "OMP_DYNAMIC", "MKL_DYNAMIC"})
"""Variables that decide how work is spread, not how it is computed: they should not move bits at level invariant."""
OF_THREADS = frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"})
"""Numbers of threads: Ray sets the first to an actor's CPUs."""
_OTHERS = """
MKL_ENABLE_INSTRUCTIONS OPENBLAS_CORETYPE
ONEDNN_DEFAULT_FPMATH_MODE ONEDNN_MAX_CPU_ISA DNNL_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA
NVIDIA_TF32_OVERRIDE CUBLASLT_WORKSPACE_SIZE CUDA_FORCE_PTX_JIT CUDA_DISABLE_PTX_JIT
CUBLAS_EMULATE_SINGLE_PRECISION CUBLAS_EMULATE_DOUBLE_PRECISION CUBLAS_EMULATION_STRATEGY
ATEN_CPU_CAPABILITY TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT
TORCH_CUDNN_USE_HEURISTIC_MODE_B TORCH_CUDNN_V8_API_DISABLED
TORCH_CUDNN_SDPA_ENABLED TORCH_CUDNN_SDPA_DEPRIORITIZED
TORCHINDUCTOR_MAX_AUTOTUNE_GEMM TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE TORCHINDUCTOR_EMULATE_PRECISION_CASTS
NCCL_NTHREADS NCCL_BUFFSIZE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS
NVTE_FLASH_ATTN NVTE_FUSED_ATTN
VLLM_ATTENTION_BACKEND VLLM_ENABLE_V1_MULTIPROCESSING VLLM_USE_FLASHINFER_SAMPLER VERL_FULL_DETERMINISM
SGLANG_ENABLE_DETERMINISTIC_INFERENCE SGLANG_FLASHINFER_PREFILL_SPLIT_TILE_SIZE
SGLANG_FLASHINFER_DECODE_SPLIT_TILE_SIZE SGLANG_TRITON_PREFILL_TRUNCATION_ALIGN_SIZE
SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE
"""
MOVE_BITS = frozenset({*LEVEL_VARIABLES, *OF_THREADS, *_OTHERS.split()})
"""Every variable known to move bits: equal in all processes of a run, unless it is of threads or of spreading."""


def worker_environment(level: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that each process of a run needs before it starts; `environ` is the controller's.

    They are the controller's own that move bits, and the level's where the controller has none. Raises LevelError for a
    value that the level does not allow, InvalidValueError for a level that does not exist.
    """
    if level not in LEVELS:
        raise InvalidValueError(f"the level {level!r}", legal=", ".join(LEVELS))
    own = {name: environ[name] for name in sorted(MOVE_BITS & environ.keys()) if environ[name]}
    if level == "off":
        return own
    needed = {name: each for name, each in LEVEL_VARIABLES.items() if level == "deterministic" or not spreads(name)}
    if bad := [name for name, each in needed.items() if name in own and not each.allows(own[name])]:
        raise LevelError(
            f"the level {level!r} conflicts with variables: " + ", ".join(f"{name}={own[name]}" for name in bad),
            legal="; ".join(legal_text(name) for name in bad),
            remedy="unset " + " ".join(bad),
        )
    return {name: each.value for name, each in needed.items()} | own


def spreads(name: str) -> bool:
    """Whether a variable decides only how work is spread."""
    return name in OF_SPREADING or name in OF_THREADS


def legal_text(name: str) -> str:
    """Return the legal values of a variable of levels."""
    each = LEVEL_VARIABLES[name]
    return f"{name}={each.value}" + (f" or {each.others}" if each.others else "")
