"""Commands that observe a server: a live screen, latencies, and a check of what is wrong."""
