"""SQL over topics: `rewrite` parses a statement, `tables` creates the views that it names, `show` prints the rows."""
