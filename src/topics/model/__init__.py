"""Names, records, and the request and response types of the `/v0` API. Pure; every other folder may import it."""
