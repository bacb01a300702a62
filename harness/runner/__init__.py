"""The GPU-aware test runner: collect units, pack them onto cards, supervise each attempt, keep every outcome."""
