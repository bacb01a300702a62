"""`rlharness bisect`: the commit, or the version of a package, that first changed what a run computes.

search.py      the search over a history of any shape, pure     candidates.py  commits, each in a worktree
criterion.py   what makes a probe bad: bits, reward, a metric   packages.py    versions of a package, beside the rest
probes.py      the probes, one after the other                  result.py      a bisection that has ended
bisection.py   from options to a result
"""
