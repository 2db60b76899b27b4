"""Commands that look at a server: a live screen, latencies, a benchmark, and a check of what is wrong."""
