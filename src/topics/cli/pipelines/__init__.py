"""The subcommands of `topics pipeline`, one module each. `topics.cli.pipeline` registers all modules of this folder."""
