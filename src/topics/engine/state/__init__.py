"""What the engine knows: topics with their segments, losses, leases and idempotency keys.

Plain data with the arithmetic that belongs to it. Every other folder of the engine builds on it.
"""
