"""SQL over topics: `rewrite` reads a statement, `tables` makes what it names, `show` prints what came of it."""
