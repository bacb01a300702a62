"""Which unit runs when and on which GPUs. Pure.

packing.py    the queue, the plan and its lower bound      leases.py     which GPUs are free, and who gets which
splitting.py  a file in parts                              sharding.py   a suite in N parts
"""
