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

from harness.bits.errors import UsageError

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
    Setting("VLLM_BATCH_INVARIANT", "1", "a completion must not depend on which requests were served beside it"),
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
    settings = [setting for setting in SETTINGS if level == DETERMINISTIC or not setting.is_of_spreading]
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


BY_OWNER = {
    "Python": ("PYTHONHASHSEED",),
    "OpenMP": ("OMP_NUM_THREADS", "OMP_DYNAMIC"),
    "MKL": ("MKL_CBWR", "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS"),
    "OpenBLAS": ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
    "oneDNN": ("ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA", "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA"),
    "CUDA": ("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"),
    "CUDA's compiler": ("CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT"),
    "cuBLAS's emulation": (
        "CUBLAS_EMULATE_SINGLE_PRECISION",
        "CUBLAS_EMULATE_DOUBLE_PRECISION",
        "CUBLAS_EMULATION_STRATEGY",
    ),
    "torch": ("ATEN_CPU_CAPABILITY", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT"),
    "torch's cuDNN": ("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "TORCH_CUDNN_V8_API_DISABLED"),
    "torch's attention": ("TORCH_CUDNN_SDPA_ENABLED", "TORCH_CUDNN_SDPA_DEPRIORITIZED"),
    "torch's tuning": ("PYTORCH_TUNABLEOP_ENABLED", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM"),
    "torch's compiler": (
        "TORCHDYNAMO_DISABLE",
        "TORCH_COMPILE_DISABLE",
        "TORCHINDUCTOR_DETERMINISTIC",
        "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
    ),
    "NCCL": ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE", "NCCL_NTHREADS", "NCCL_BUFFSIZE"),
    "NCCL's channels": ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    "HCCL": ("HCCL_DETERMINISTIC",),
    "kernels": ("FLASH_ATTENTION_DETERMINISTIC", "MAMBA_DETERMINISTIC", "CAUSAL_CONV1D_DETERMINISTIC"),
    "Transformer Engine": ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN"),
    "vLLM": ("VLLM_ATTENTION_BACKEND", "VLLM_BATCH_INVARIANT", "VLLM_ENABLE_V1_MULTIPROCESSING"),
    "vLLM's sampler": ("VLLM_USE_FLASHINFER_SAMPLER",),
    "SGLang": (
        "SGLANG_ENABLE_DETERMINISTIC_INFERENCE",
        "SGLANG_FLASHINFER_PREFILL_SPLIT_TILE_SIZE",
        "SGLANG_FLASHINFER_DECODE_SPLIT_TILE_SIZE",
        "SGLANG_TRITON_PREFILL_TRUNCATION_ALIGN_SIZE",
        "SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE",
    ),
    "verl": ("VERL_FULL_DETERMINISM",),
}
"""Set or not, and to what: part of what a run's bits depend on."""
MOVE_BITS = frozenset(name for names in BY_OWNER.values() for name in names)

LOWERED = {
    "NVIDIA_TF32_OVERRIDE": (
        "1",
        "every float32 matrix product keeps only 10 mantissa bits of its inputs, regardless of the code",
    ),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("1", "float32 products use TF32, although torch's default does not"),
    "ONEDNN_DEFAULT_FPMATH_MODE": ("BF16 F16 TF32 ANY", "float32 products on the CPU use fewer bits"),
    "DNNL_DEFAULT_FPMATH_MODE": ("BF16 F16 TF32 ANY", "float32 products on the CPU use fewer bits"),
    "PYTORCH_TUNABLEOP_ENABLED": ("1", "torch uses the kernel it measures as fastest: two runs may use different ones"),
    "TORCHINDUCTOR_MAX_AUTOTUNE": (
        "1",
        "torch uses the kernel it measures as fastest: two runs may use different ones",
    ),
    "OMP_DYNAMIC": ("TRUE", "the number of threads changes during a run, and sums change with it"),
}
"""Values (in capitals) that cost accuracy or repeatability, and how."""

WORKSPACES = (":4096:8", ":16:8")
"""Values that torch accepts for deterministic cuBLAS (torch.use_deterministic_algorithms)."""
