"""Who can reach the server, and whether what they send is encrypted."""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path

from trainer_server.server.config import ServerConfig
from trainer_server.wire import ConfigError


def check_exposure(config: ServerConfig) -> None:
    """Refuses to serve others over a connection that is not encrypted, and certificates that cannot be used.

    Raises:
        ConfigError: `host` is reachable from other machines, and there is neither a certificate nor `insecure`; or a
            file is missing, or is no certificate, or the key is of another one.
    """
    if config.ssl_keyfile is not None and config.ssl_certfile is None:
        raise ConfigError(f"--ssl-keyfile {config.ssl_keyfile}: its certificate is missing, give --ssl-certfile too")
    if config.ssl_certfile is not None:
        _check_certificate(config.ssl_certfile, config.ssl_keyfile)
    elif not (config.insecure or is_loopback(config.host)):
        raise ConfigError(
            f"--host {config.host}: tokens and the texts of users would cross the network unencrypted. Give "
            "--ssl-certfile and --ssl-keyfile; or --insecure, if a proxy or a tunnel encrypts, or nobody else is on "
            "this network"
        )


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach an address. A name other than localhost may be anybody's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def proxies_named() -> bool:
    """Whether FORWARDED_ALLOW_IPS, uvicorn's own variable, names proxies. What they say in X-Forwarded-For and
    X-Forwarded-Proto is then believed. Without it nobody is: any program on this machine could name any address."""
    return bool(os.environ.get("FORWARDED_ALLOW_IPS"))


def address_of(config: ServerConfig) -> str:
    """The URL by which programs on this machine reach the server. With a certificate it has the first of the names that
    the server is known by, as the certificate is made out to a name."""
    scheme = "https" if config.ssl_certfile is not None else "http"
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    if config.ssl_certfile is not None and config.allowed_hosts:
        host = config.allowed_hosts[0]
    return f"{scheme}://[{host}]:{config.port}" if ":" in host else f"{scheme}://{host}:{config.port}"


def _check_certificate(certificate: Path, key: Path | None) -> None:
    for option, path in (("--ssl-certfile", certificate), ("--ssl-keyfile", key)):
        if path is not None and not path.is_file():
            raise ConfigError(f"{option} {path}: there is no such file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        file = certificate if key is None else f"{certificate} and {key}"
        raise ConfigError(
            f"--ssl-certfile: {file} cannot be used ({error}). Both must be PEM files, the key that of the certificate "
            "and without a password; a file with both needs no --ssl-keyfile"
        ) from None
