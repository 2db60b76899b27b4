"""End with 0 if the server of this container is alive. It asks over HTTPS first if the server has a certificate."""

import contextlib
import http.client
import os
import ssl
import sys
import urllib.request

# The certificate names the service and not the loopback address; the request has no secret and its answer is not used.
context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE

# A certificate can also come from an option of the command, so the other scheme is tried, too.
schemes = ("https", "http") if os.environ.get("TOPICS_TLS_CERT") else ("http", "https")
address = f"127.0.0.1:{os.environ.get('TOPICS_PORT', '4000')}/v0/health"
for scheme in schemes:
    with contextlib.suppress(OSError, http.client.HTTPException):
        urllib.request.urlopen(f"{scheme}://{address}", timeout=2, context=context).close()
        sys.exit(0)
sys.exit(f"no server answers at {address}")
