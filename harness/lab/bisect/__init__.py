"""`rlharness bisect`: the commit, or the version of a package, that first changed what a run computes.

search.py      the search over a history of any shape, pure     candidates.py  commits, versions of a package
criterion.py   what makes a probe bad: bits, reward, a metric   bisection.py   the runs, and their result
"""
