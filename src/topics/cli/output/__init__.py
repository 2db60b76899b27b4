"""What commands print: tables and records on a terminal, JSON lines in a pipe, errors, and exit statuses.

Imported by every command. Loads `rich` only to draw a table on a terminal.
"""
