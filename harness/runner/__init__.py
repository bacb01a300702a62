"""The GPU-aware test runner: collect units, pack them onto GPUs, supervise each attempt, keep every outcome."""
