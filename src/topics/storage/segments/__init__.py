"""Segments of a topic: columns of records in memory or in a file, and loads of those that are not in memory."""
