"""Work across processes: dispatch tables, worker groups of Ray, placement, reports, restarts."""
