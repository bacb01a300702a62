"""Running units on the nodes of a cluster.

messages.py      everything that the run and an agent say to each other
channel.py       a connection whose messages are sealed with the key of the run
attempt_book.py  which attempt is on which node, and what still counts
nodes.py         the run's side: nodes that join and are lost, and attempts on them
inventory.py     the GPUs of all nodes
mirror.py        files of an attempt, brought from its node
shipping.py      the sources of the suite, where nodes do not share them
boot.py          starting agents: simulated nodes here, or one on each node of a Ray cluster
ray_boot.py      a process that joins a Ray cluster and holds an agent on each node

The agent itself is `harness.runner.agent`, since it opens the same context as a run.
"""
