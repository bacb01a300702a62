"""rlharness: pack GPU tests, prove that a training run is bitwise reproducible, name the first difference.

PYTEST_DONT_REWRITE: pytest warns if a package with a plugin is imported before it starts, as a recorded pytest does.
"""

__version__ = "0.1.0"
