"""Simulated time and disk, for our tests and for those of users. Nothing in the package imports this."""
