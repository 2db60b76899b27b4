"""Queues: claim, ack, nack and extend, the order of jobs, and dead letters. Jobs are records of a topic."""
