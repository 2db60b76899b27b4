"""GET routes with effects, protected from pages of other sites.

A browser sends a GET for an image or a link on any page, without asking the server first. On a server without keys,
such a request is refused where the operation changes something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from topics.errors import Code, TopicsError
from topics.server.access.operations import no_effects
from topics.server.http.request import query_string

if TYPE_CHECKING:
    from topics.server.api.route import Call, Route
    from topics.server.api.services import Services
    from topics.server.http.messages import Answer
    from topics.server.http.request.browser_origin import Pages


def protected(routes: list[Route], pages: Pages | None) -> list[Route]:
    """Return the routes; GET routes with effects refuse pages of other origins."""
    if pages is None:
        return routes
    return [_protected(route, pages) if route.method == "GET" else route for route in routes]


def _protected(route: Route, pages: Pages) -> Route:
    handler, effects = route.handler, route.operation.effects
    if effects is no_effects:
        return route

    def handle(services: Services, call: Call) -> Answer:
        headers = call.request.headers
        if route.stream and b"sec-fetch-site" not in headers:
            return handler(services, call)  # the handler answers an `Accept` that only a page sends with 406
        if pages.is_foreign(headers) and effects(query_string.parse(call.request.query)):
            raise TopicsError(
                Code.FORBIDDEN,
                "this GET changes state, and a page of another site sent it; add its origin to TOPICS_CORS_ORIGINS, "
                "or set TOPICS_API_KEYS",
            )
        return handler(services, call)

    return structs.replace(route, handler=handle)
