"""Tools for AI agents by the Model Context Protocol: what an agent does with topics, through the Python client.

Needs the extra `mcp`. Imports the client; the command line imports it.
"""
