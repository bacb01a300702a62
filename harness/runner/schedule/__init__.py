"""Which unit runs when and on which GPUs: leases, packing, lower bounds. Pure but for the clock of the search.

packing.py       the plan and its order          leases.py            which GPUs are free
first_fit.py     simulates a schedule            gpu_choice.py        which of the free GPUs a unit gets
order_search.py  better orders, by local search  sharding.py          a suite in N parts
splitting.py     a file in parts                 makespan_bounds.py   the shortest possible run; also with
                                                                      preemptive_bound.py, shared_bound.py
"""
