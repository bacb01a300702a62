"""rlharness: pack GPU tests, prove that a training run is bitwise reproducible, name the first difference."""

__version__ = "0.1.0"
