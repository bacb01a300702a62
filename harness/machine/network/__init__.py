"""Interface choices of NCCL, Gloo and Ray, connections of this host to itself, and between hosts."""
