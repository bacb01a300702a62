"""Work across processes: dispatch tables, meshes, worker groups and the backends that run them."""
