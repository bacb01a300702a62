"""Which unit runs when and on which GPUs: leases, packing, lower bounds. Pure.

packing.py     the plan and its order        leases.py           which GPUs are free
first_fit.py   simulates a schedule          gpu_choice.py       which of the free GPUs a unit gets
order.py       the best of a few sort keys   sharding.py         a suite in N parts
splitting.py   a file in parts               makespan_bounds.py  the shortest possible run
"""
