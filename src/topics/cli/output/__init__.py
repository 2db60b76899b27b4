"""What commands print: tables and records on a terminal, JSON lines in a pipe, errors, and exit statuses."""
