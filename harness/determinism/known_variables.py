"""Every environment variable known to move the bits of a training run, and its harmful values. Pure.

From torch's sources (those its libraries and torch/_inductor/config.py read), the lists of environment variables of
NCCL, oneDNN, MKL, Transformer Engine and vLLM, Megatron's and verl's deterministic modes, and Python.
"""

from collections.abc import Mapping, Sequence

from harness.core.findings import Finding, Severity

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


def check_hash_seed(environ: Mapping[str, str]) -> Finding:
    """Whether two processes give their sets and strings the same order."""
    seed = environ.get("PYTHONHASHSEED")
    if seed and seed != "random":
        return Finding("PYTHONHASHSEED", Severity.FINE, f"{seed}: sets have the same order in every process")
    measured = seed or "not set"
    return Finding(
        "PYTHONHASHSEED",
        Severity.FINE,
        f"{measured}: set order differs between processes; level deterministic sets it for a run",
    )


def check_bit_variables(environ: Mapping[str, str]) -> list[Finding]:
    """Check the variables that move bits: a finding for each harmful value, and one for the others."""
    findings = [*_lowered(environ), *_workspace(environ), *_threads(environ)]
    told = {finding.check for finding in findings}
    others = [f"{name}={environ[name]}" for name in sorted(MOVE_BITS & environ.keys()) if name not in told]
    others = [text for text in others if not text.startswith("PYTHONHASHSEED=")]
    measured = (
        "a run's bits depend on these variables: " + " ".join(others)
        if others
        else "no variable that moves the bits of a run is set"
    )
    return [*findings, Finding("bits", Severity.FINE, measured)]


def _lowered(environ: Mapping[str, str]) -> Sequence[Finding]:
    return [
        Finding(name, Severity.WARNING, f"{name}={environ[name]}", breaks=how, remedy=f"unset {name}", unsets=(name,))
        for name, (values, how) in LOWERED.items()
        if environ.get(name, "").upper() in values.split()
    ]


def _workspace(environ: Mapping[str, str]) -> Sequence[Finding]:
    name = "CUBLAS_WORKSPACE_CONFIG"
    value = environ.get(name)
    if value is None or value in WORKSPACES:
        return []
    return [
        Finding(
            name,
            Severity.WARNING,
            f"{name}={value}",
            breaks="torch.use_deterministic_algorithms(True) refuses matrix products on a GPU",
            remedy=f"export {name}={WORKSPACES[0]}",
            exports=((name, WORKSPACES[0]),),
        )
    ]


def _threads(environ: Mapping[str, str]) -> Sequence[Finding]:
    """Numbers of threads that OpenMP, MKL and OpenBLAS would ignore."""
    findings = []
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        value = environ.get(name, "")
        levels = value.split(",") if name == "OMP_NUM_THREADS" else [value]  # one number per level of nesting
        if value and not all(level.strip().isdigit() and int(level) > 0 for level in levels):
            breaks = "libraries ignore it and start one thread per core: sums differ between machines"
            remedy = f"unset {name}"
            findings.append(Finding(name, Severity.WARNING, f"{name}={value}", breaks, remedy, unsets=(name,)))
    return findings
