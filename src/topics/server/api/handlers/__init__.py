"""One handler per route: decode the request, make one engine call, encode the answer.

Only the route table imports it.
"""
