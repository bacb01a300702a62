"""`rlharness gate`: what a change does to training runs: equal, numerics only, behaviour; and what they cost."""
