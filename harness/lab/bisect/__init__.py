"""`rlharness bisect`: the commit, or the version of a package, that first changed what a run computes.

search.py      the search over a history of any shape, pure     commits.py    probes in worktrees
criterion.py   what makes a probe bad: bits, reward, a metric   packages.py   probes beside versions of a package
command.py     from arguments to exit code
"""
