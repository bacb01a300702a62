"""Operations whose bits for a row depend on that row alone, and the probe that looks whether they do on this machine.

Not on the batch, its padding, the row's position in it, the number of threads, nor on whether a sequence is read in one
pass or decoded token by token. Outside `with invariant(report)` each is torch's own operation: level off.
"""
