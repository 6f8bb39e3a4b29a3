"""TLS and SASL: from the config to what aiokafka's clients take."""

from __future__ import annotations

import importlib
import ssl
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from headrace import SourceMisconfigured
from headrace_kafka.config import KafkaConfig


def security_options(config: KafkaConfig) -> dict[str, Any]:
    """The clients' keyword arguments. Raises `SourceMisconfigured` for files and classes that cannot be loaded."""
    return {
        "security_protocol": config.security_protocol,
        "ssl_context": _ssl_context(config) if "SSL" in config.security_protocol else None,
        "sasl_mechanism": config.sasl_mechanism,
        "sasl_plain_username": config.sasl_plain_username,
        "sasl_plain_password": config.sasl_plain_password.get_secret_value() if config.sasl_plain_password else None,
        "sasl_kerberos_service_name": config.sasl_kerberos_service_name,
        "sasl_kerberos_domain_name": config.sasl_kerberos_domain_name,
        "sasl_oauth_token_provider": _token_provider(config.sasl_oauth_token_provider),
    }


def _ssl_context(config: KafkaConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ssl_cafile)
    except OSError as error:
        raise SourceMisconfigured(f"ssl_cafile {config.ssl_cafile!r} cannot be loaded: {error}") from error
    context.check_hostname = config.ssl_check_hostname
    if config.ssl_certfile is not None:
        password = config.ssl_password.get_secret_value() if config.ssl_password else ""
        try:
            # A key that is encrypted would else be asked for on the terminal.
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, lambda: password)
        except OSError as error:
            raise SourceMisconfigured(
                f"ssl_certfile {config.ssl_certfile!r} cannot be loaded (with ssl_keyfile, ssl_password): {error}"
            ) from error
    return context


def _token_provider(path: str | None) -> AbstractTokenProvider | None:
    if path is None:
        return None
    module, _, name = path.partition(":")
    try:
        provider = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SourceMisconfigured(f"sasl_oauth_token_provider {path!r} cannot be built: {error}") from error
    if not isinstance(provider, AbstractTokenProvider):
        raise SourceMisconfigured(f"sasl_oauth_token_provider {path!r} is no aiokafka.abc.AbstractTokenProvider")
    return provider
