"""Limits on what the process uses: the memory budget, caps, and the limits of the operating system.

Every other folder of the server may import it; it imports none of them.
"""
