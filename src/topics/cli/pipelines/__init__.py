"""The commands below `topics pipeline`: one module each, found by being here."""
