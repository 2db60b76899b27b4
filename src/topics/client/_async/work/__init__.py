"""Work on jobs: workers, loops over jobs, and the extension of their leases."""
