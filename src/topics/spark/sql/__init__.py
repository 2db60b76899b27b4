"""SQL over topics: `text` finds names in a statement, `tables` creates views for them, `show` prints the rows."""
