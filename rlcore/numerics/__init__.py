"""Operations whose bits for a row depend on that row alone, and what certifies them on this machine.

Not on the batch, its padding, the row's position in it, the number of threads, nor on whether a sequence is read in one
pass or decoded token by token. Outside `invariant(certificate)` each is torch's own operation: level off.
"""
