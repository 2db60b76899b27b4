"""SIGHUP: read the files of certificates and API keys again. A file that cannot be used changes nothing."""

from collections.abc import Callable

from topics import logs
from topics.config import Settings
from topics.errors import TopicsError
from topics.keys import KeyRule
from topics.server.http.tls import Certificate

log = logs.Log("server")


class Reload:
    """Reads again, when it is called, what the settings name as files, and logs what has changed and what cannot."""

    def __init__(
        self, settings: Settings, certificate: Certificate | None, use_keys: Callable[[tuple[KeyRule, ...]], None]
    ) -> None:
        self._settings = settings
        self._certificate = certificate
        self._use_keys = use_keys

    def __call__(self) -> None:
        if self._certificate is not None:
            self._reload_certificate(self._certificate)
        if self._settings.api_keys_file is not None:
            self._reload_keys()
        log.info("reloaded", hint="all other settings, and the keys in TOPICS_API_KEYS, change with a restart")

    def _reload_certificate(self, certificate: Certificate) -> None:
        try:
            certificate.reload()
            log.info("certificate_reloaded")
        except TopicsError as error:
            log.error("certificate_refused", reason=error.message, hint="the server continues with the old certificate")

    def _reload_keys(self) -> None:
        try:
            rules = self._settings.reread_key_rules()
            self._use_keys(rules)
            log.info("keys_reloaded", keys=len(rules))
        except ValueError as error:
            log.error("keys_refused", reason=str(error), hint="the server continues with the old keys")
