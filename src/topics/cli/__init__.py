"""The `topics` command. A subcommand is a module with `register(subparsers)`; `main` lists them."""
