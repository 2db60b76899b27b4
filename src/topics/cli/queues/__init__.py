"""Commands for queues: list, claim, finish and return jobs, look at them, and run a program for each."""
