"""WebSockets: handshake, input, commands, and the connection that joins them.

`api` imports it. It imports the dispatcher and the subscriptions of `push`.
"""
