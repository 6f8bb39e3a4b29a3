"""SASL, TLS and permissions on a real broker: what works, and which option each refusal names."""

from __future__ import annotations

import asyncio
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from headrace_kafka import KafkaProducer

from headrace import AdvanceItem, AdvanceOutcome, HeadraceError, SourceMisconfigured, SourceUnavailable
from headrace.testing.brokers.process import free_port

pytestmark = pytest.mark.integration


class Guarded(NamedTuple):
    """A broker that also listens with SASL and with TLS, and allows what its lists say."""

    cluster: Any
    sasl: str
    tls: str
    authority: Path


def certificate(path: Path, name: str) -> Path:
    """A key and a certificate for 127.0.0.1 that signs itself, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
async def guarded(own_cluster: Any, tmp_path: Path) -> Guarded:
    sasl, tls = (f"127.0.0.1:{free_port()}" for _ in range(2))
    authority = certificate(tmp_path / "broker.pem", "broker")
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret-a" user_bob="secret-b";'
    cluster = own_cluster(
        {
            "listeners": f"SASL://{sasl},TLS://{tls}",
            "advertised.listeners": f"SASL://{sasl},TLS://{tls}",
            "listener.security.protocol.map": "SASL:SASL_PLAINTEXT,TLS:SSL",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": jaas,
            "listener.name.tls.ssl.keystore.type": "PEM",
            "listener.name.tls.ssl.keystore.location": str(authority),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice",
        }
    )
    if cluster.server.kind == "docker":
        pytest.skip("a container opens one port only")
    return Guarded(cluster, sasl, tls, authority)


async def outcome(config: Any) -> HeadraceError | list[bytes | None]:
    """What a stream gives first: its values, settled, or its error."""
    producer = KafkaProducer(config)
    batches = producer.open_batches()
    try:
        async with asyncio.timeout(20):
            batch = await anext(batches)
        await producer.advance([AdvanceItem(payload, AdvanceOutcome(1, 0)) for _, payload in batch])
        return [raw.value for raw, _ in batch]
    except HeadraceError as error:
        return error
    finally:
        await batches.aclose()
        await producer.aclose()


async def test_credentials_permissions_and_certificates(guarded: Guarded, tmp_path: Path, caplog: Any) -> None:
    """With the right settings messages come and are committed. A wrong password, a mechanism that is not offered, a topic and a
    group that are not allowed, an unknown authority: each is `SourceMisconfigured` and names its option; no secret is told."""
    cluster = guarded.cluster
    topic = cluster.topic()
    await cluster.publish(topic, [b"x"])

    def by_password(user: str, password: str, **options: Any) -> Any:
        defaults = {
            "bootstrap_servers": guarded.sasl,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }
        return cluster.config(topic, **defaults | options)

    def by_tls(**options: Any) -> Any:
        return cluster.config(topic, bootstrap_servers=guarded.tls, security_protocol="SSL", **options)

    assert await outcome(by_password("alice", "secret-a")) == [b"x"]
    assert await outcome(by_tls(ssl_cafile=str(guarded.authority))) == [b"x"]
    assert await outcome(by_tls(ssl_cafile=str(guarded.authority), ssl_certfile=str(guarded.authority))) == [b"x"]

    stranger = certificate(tmp_path / "stranger.pem", "stranger")
    allowed = by_password("bob", "secret-b")
    refused = {
        "sasl_plain_password": by_password("alice", "secret-b"),
        "sasl_mechanism": by_password("alice", "secret-a", sasl_mechanism="SCRAM-SHA-256"),
        "topics": by_password("bob", "secret-b"),
        "ssl_cafile": by_tls(ssl_cafile=str(stranger)),
        "ssl_certfile": by_tls(ssl_cafile=str(guarded.authority), ssl_certfile=str(tmp_path / "lacking.pem")),
    }
    for option, config in refused.items():
        said = await outcome(config)
        assert isinstance(said, SourceMisconfigured), (option, said)
        assert option in str(said)

    pattern = (ResourcePatternType.LITERAL, "User:bob", "*", AclOperation.READ, AclPermissionType.ALLOW)
    admin = AdminClient({"bootstrap.servers": cluster.address})
    for done in admin.create_acls([AclBinding(ResourceType.TOPIC, topic, *pattern)]).values():
        await asyncio.to_thread(done.result, 20)
    said = await outcome(allowed)
    assert isinstance(said, SourceMisconfigured)
    assert f"group_id '{allowed.group_id}'" in str(said)

    said = await outcome(cluster.config(topic, bootstrap_servers=guarded.tls, request_timeout=1.0))
    assert isinstance(said, SourceUnavailable)
    for secret in ("secret-a", "secret-b"):
        assert secret not in caplog.text
        assert secret not in repr(allowed)
