"""A data directory without a server: opened for reading, verified, and accounted for."""
