"""The path of a read: a page of records with the tombstones between them, and scans of whole topics."""
