"""Jobs and those who do them: leases, loops over jobs, and workers."""
