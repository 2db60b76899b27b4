"""Routers: the graph of topics, which records a router copies, and their replay from the log."""
