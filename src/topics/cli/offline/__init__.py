"""Commands that work on files or a replica, without a server."""
