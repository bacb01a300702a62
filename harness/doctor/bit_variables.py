"""Findings on the environment variables that move the bits of a training run. Pure."""

from collections.abc import Mapping, Sequence

from harness.bits.levels import MOVE_BITS
from harness.machine.findings import Finding, Severity

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
