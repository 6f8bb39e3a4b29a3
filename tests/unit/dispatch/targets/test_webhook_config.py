"""What a webhook's config takes, and what it never shows."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.dispatch.targets.webhook import WebhookConfig, retry_after


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"url": "ftp://host/"}, "URL scheme should be 'http' or 'https'"),
        ({"url": "orders"}, "relative URL without a base"),
        ({"mode": "batch"}, "'structured' or 'binary'"),
        ({"headers": {"bad name": "x"}}, "'bad name' is not a header name"),
        ({"headers": {"X-Key": "a\r\nX-Other: b"}}, "has characters that a header cannot carry"),
        ({"headers": {"content-type": "text/plain"}}, "is set by the webhook itself"),
        ({"headers": {"ce-id": "1"}}, "is set by the webhook itself"),
        ({"token": "a\nb"}, "the token is empty or has characters"),
        ({"token": ""}, "the token is empty or has characters"),
        ({"token": "a", "headers": {"authorization": "b"}}, "not both"),
        ({"timeout": 0}, "greater than 0"),
        ({"timeout": float("inf")}, "finite number"),
        ({"max_attempts": 0}, "greater than or equal to 1"),
        ({"retires": 3}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_settings_are_refused_with_a_reason(changes: dict[str, Any], says: str) -> None:
    """Each mistake has a message that names it, and the message holds no value that may be a secret."""
    with pytest.raises(ValidationError) as refused:
        WebhookConfig(**{"url": "http://localhost/orders", **changes})
    assert says in str(refused.value)
    assert "X-Other" not in str(refused.value)


def test_secrets_are_in_no_repr() -> None:
    """Tokens, header values and the URL, whose path or query often is a secret, are not printed."""
    config = WebhookConfig(url="https://host/secret-path?key=secret-query", token="secret-token", headers={"x-key": "secret-key"})
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("120", 120.0),
        (" 0 ", 0.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("\u0661\u0662", None),
        ("9" * 400, float("inf")),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10.0),
        ("Tue, 14 Nov 2023 22:13:30 -0000", 10.0),
        ("Tuesday, 14-Nov-23 22:13:30 GMT", 10.0),
        ("Tue Nov 14 22:13:30 2023", 10.0),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0.0),
        ("Fri, 99 Nov 2023 22:13:30 GMT", None),
        ("Fri, 31 Dec 99999999999 22:13:30 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_an_http_date(value: str | None, seconds: float | None) -> None:
    """A number of seconds, or any of the date formats of RFC 9110; what is neither is as if it were not there."""
    assert retry_after(value, now=1_700_000_000.0) == seconds
