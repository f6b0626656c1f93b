"""Who can reach the server: nobody without a certificate, unless it was said; and HTTPS with one."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.servers.serving import serving
from trainer_server.common import Home
from trainer_server.server.access.connections import Limits, patient_protocol
from trainer_server.server.access.exposure import address_of, check_exposure, is_loopback
from trainer_server.server.config import ServerConfig
from trainer_server.wire import ConfigError


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "art.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "art.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "art.pem", folder / "art.key"


def config(**settings: Any) -> ServerConfig:
    return ServerConfig(Home(Path("/nowhere")), **settings)


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("10.0.0.2", False), ("art.example.com", False)],
)  # fmt: skip
def test_only_loopback_needs_no_certificate(host: str, alone: bool, certificate: tuple[Path, Path]) -> None:
    assert is_loopback(host) is alone
    if alone:
        check_exposure(config(host=host))
    else:
        with pytest.raises(ConfigError, match=rf"--host {host}: .* --ssl-certfile .* --insecure"):
            check_exposure(config(host=host))
    check_exposure(config(host=host, insecure=True))
    check_exposure(config(host=host, ssl_certfile=certificate[0], ssl_keyfile=certificate[1]))


def test_what_cannot_be_used_is_named(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"no\.pem cannot be used"):
        check_exposure(config(ssl_certfile=tmp_path / "no.pem"))
    with pytest.raises(ConfigError, match=r"--ssl-certfile .*gone: there is no such file"):
        check_exposure(config(ssl_certfile=tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"its certificate is missing"):
        check_exposure(config(ssl_keyfile=certificate[1]))


def test_the_address_of_a_server_with_a_certificate(certificate: tuple[Path, Path]) -> None:
    assert address_of(config(host="0.0.0.0", port=1)) == "http://127.0.0.1:1"
    assert address_of(config(host="::1", port=1)) == "http://[::1]:1"
    named = config(host="0.0.0.0", port=1, ssl_certfile=certificate[0], allowed_hosts=("art.example.com",))
    assert address_of(named) == "https://art.example.com:1"


async def test_https_with_our_own_protocol_of_connections(certificate: tuple[Path, Path]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": scope["scheme"].encode()})

    files = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
    with serving(app, http=patient_protocol(Limits.here().connections), **files) as url:
        trusted = ssl.create_default_context(cafile=certificate[0])
        async with httpx.AsyncClient(verify=trusted) as client:
            answer = await client.get(url.replace("http://127.0.0.1", "https://localhost"))
        assert answer.text == "https"
        async with httpx.AsyncClient() as stranger:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.get(url.replace("http://127.0.0.1", "https://localhost"))
            with pytest.raises(httpx.TransportError):
                await stranger.get(url)
