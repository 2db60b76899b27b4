"""The write-ahead log: frames, entries, files, the group writer, and the ledger that accounts for the files."""
