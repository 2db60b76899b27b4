"""What the process may use: the memory budget, and what the operating system allows.

Every other folder of the server may import it; it imports none of them.
"""
