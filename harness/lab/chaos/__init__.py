"""`rlharness chaos`: settings that should not affect results, perturbed or varied."""
