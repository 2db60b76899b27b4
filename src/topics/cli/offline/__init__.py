"""Commands that work on a data directory without a server: backup, restore, verify."""
