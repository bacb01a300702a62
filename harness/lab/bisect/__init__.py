"""`rlharness bisect`: the commit, or the version of a package, that first changed what a run computes."""
