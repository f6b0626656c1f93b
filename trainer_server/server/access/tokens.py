"""Named tokens: scope, limits and expiry of each. Only their hashes are stored.

A token has 256 random bits. Nobody can guess it from its SHA-256, so it needs no slow hash, as a password would.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from trainer_server.common import Home
from trainer_server.common.home import create_private
from trainer_server.process.files import FileReader, write_atomic
from trainer_server.wire import ConfigError

SERVER_KEY = "server-key"
"""The name of whoever has the server's own key."""
ENGINE_KEY = "engine-key"
"""The name of engines elsewhere (`--engine-url`), which have the key that the server has for them."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_CHARACTERS = "1 to 64 letters, digits, `.`, `_`, `@` and `-`, the first one a letter or a digit"


class Scope(StrEnum):
    """What a token is for. `train` has the rights of `engine` and `rollout`, and `admin` those of all."""

    engine = "engine"
    rollout = "rollout"
    train = "train"
    admin = "admin"

    def covers(self, other: Scope) -> bool:
        """Whether this scope has the rights of another one."""
        return other in _RIGHTS[self]


_RIGHTS = {
    Scope.engine: {Scope.engine},
    Scope.rollout: {Scope.rollout},
    Scope.train: {Scope.engine, Scope.rollout, Scope.train},
    Scope.admin: set(Scope),
}


class Token(BaseModel):
    """What is kept of a token."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Of its user, a person or a program."""
    scope: Scope
    owner: str | None = None
    """The person or team that answers for it, who may have several tokens; None: nobody was named."""
    digest: str
    """SHA-256 of the token, hexadecimal."""
    created: float
    """Unix time, seconds."""
    expires: float | None = None
    """Unix time, seconds; None: never."""
    requests_in_flight: int | None = Field(default=None, ge=1)
    """Model requests at once, those of all tokens of its owner; None: any number."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Tokens of prompts and answers in a minute, those of all tokens of its owner; None: any number."""

    def expired(self, now: float) -> bool:
        """Whether the token does not count any more."""
        return self.expires is not None and self.expires <= now


def digest_of(secret: str) -> str:
    """What is kept of a token instead of the token."""
    return hashlib.sha256(secret.encode()).hexdigest()


_Tokens = TypeAdapter(list[Token])
_Uses = TypeAdapter(dict[str, float])


class TokenRepository:
    """The file of named tokens. A server and commands may use it at once: a change counts at the next request.

    Args:
        home: Where the file is.
        clock: Gives the time, Unix seconds.
    """

    def __init__(self, home: Home, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = home.tokens, clock
        self._uses = home.tokens.with_name("tokens-used.json")
        self._files = FileReader()

    def all(self) -> list[Token]:
        """All tokens that are not revoked, expired ones too.

        Raises:
            ConfigError: The file is damaged.
        """
        try:
            return list(self._files.read(self._path, _Tokens.validate_json))
        except FileNotFoundError:
            return []
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"{self._path} cannot be read, so no named token is accepted: {error}. Repair it, or delete it and "
                "create the tokens again"
            ) from None

    def create(
        self,
        name: str,
        scope: Scope,
        *,
        owner: str | None = None,
        seconds: float | None = None,
        requests_in_flight: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> str:
        """Creates a token.

        Args:
            name: Of its user.
            scope: What it is for.
            owner: Whose it is; None: nobody's.
            seconds: How long it counts; None: until it is revoked.
            requests_in_flight: Model requests at once; None: any number.
            tokens_per_minute: Tokens of prompts and answers in a minute; None: any number.

        Returns:
            The token. It is stored nowhere.

        Raises:
            ConfigError: The name or the owner cannot be used, or the name has a token.
        """
        if name in (SERVER_KEY, ENGINE_KEY) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a token: use {_CHARACTERS}, and not {SERVER_KEY!r} or {ENGINE_KEY!r}, "
                "which are the server's own key and that of its engines"
            )
        if owner is not None and not _NAME.fullmatch(owner):
            raise ConfigError(f"{owner!r} cannot be the owner of a token: use {_CHARACTERS}")
        secret, now = f"art-{secrets.token_urlsafe(32)}", self._clock()
        token = Token(
            name=name,
            scope=scope,
            owner=owner,
            digest=digest_of(secret),
            created=now,
            expires=None if seconds is None else now + seconds,
            requests_in_flight=requests_in_flight,
            tokens_per_minute=tokens_per_minute,
        )
        with self._changing() as tokens:
            if any(other.name == name for other in tokens):
                raise ConfigError(f"there is a token {name!r}: revoke it first (`art-langgraph tokens revoke {name}`)")
            tokens.append(token)
        return secret

    def revoke(self, name: str) -> Token:
        """Deletes a token. A running server refuses it from its next request on.

        Returns:
            What it was.

        Raises:
            ConfigError: There is none with this name.
        """
        with self._changing() as tokens:
            token = next((token for token in tokens if token.name == name), None)
            if token is None:
                names = ", ".join(token.name for token in tokens)
                raise ConfigError(f"there is no token {name!r}; there are: {names or 'none'}")
            tokens.remove(token)
        return token

    def last_used(self) -> dict[str, float]:
        """When tokens were used last, as far as the server has written it down: Unix time by digest."""
        try:
            return dict(self._files.read(self._uses, _Uses.validate_json))
        except (OSError, ValueError):  # a record of convenience: a damaged one is written anew
            return {}

    def note_uses(self, uses: dict[str, float]) -> None:
        """Writes down when tokens were used last. Those that are revoked are forgotten. Only servers call it.

        Args:
            uses: Unix time by digest.
        """
        before = self.last_used()
        latest = {
            token.digest: max(uses.get(token.digest, 0.0), before.get(token.digest, 0.0))
            for token in self.all()
            if token.digest in before or token.digest in uses
        }
        write_atomic(self._uses, json.dumps(latest))

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """The tokens as a list, which is written when the block ends without an error. One process at a time."""
        lock = self._path.with_name("tokens.lock")
        create_private(lock)
        with lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            tokens = self.all()
            yield tokens
            write_atomic(self._path, _Tokens.dump_json(tokens, indent=1).decode())


class Keyring:
    """The server's own key, that of its engines, and the named tokens.

    Args:
        server_key: Its holder may do everything.
        book: The named tokens; None: there are none.
        clock: Gives the time, Unix seconds.
        engine_key: Its holders may fetch adapters; None: there are none.
    """

    def __init__(
        self,
        server_key: str,
        book: TokenRepository | None = None,
        clock: Callable[[], float] = time.time,
        *,
        engine_key: str | None = None,
    ) -> None:
        self._own = Token(name=SERVER_KEY, scope=Scope.admin, digest=digest_of(server_key), created=0.0)
        self._own_tokens = [self._own]
        if engine_key:
            digest = digest_of(engine_key)
            self._own_tokens.insert(0, Token(name=ENGINE_KEY, scope=Scope.engine, digest=digest, created=0.0))
        self._book, self._clock = book, clock
        self._used: dict[str, float] = {}

    @property
    def own_digest(self) -> str:
        """Digest of the server's own key."""
        return self._own.digest

    def find(self, secret: str) -> Token | None:
        """The token that a request carries, also an expired one; None: there is no such token.

        All digests are compared, each in constant time.

        Raises:
            ConfigError: The file of named tokens is damaged, and this is none of the server's keys.
        """
        digest = digest_of(secret).encode()
        if (own := _match(digest, self._own_tokens)) is not None:
            return own
        token = _match(digest, self._book.all()) if self._book is not None else None
        if token is not None:
            self._used[token.digest] = self._clock()
        return token

    def find_by_name(self, name: str) -> Token | None:
        """The token with a name, also an expired one; None: there is none, or it was revoked."""
        own = next((token for token in self._own_tokens if token.name == name), None)
        if own is not None or self._book is None:
            return own
        return next((token for token in self._book.all() if token.name == name), None)

    def write_uses(self) -> None:
        """Writes down when tokens were used since the last call. Slow: it waits for the disk."""
        if self._used and self._book is not None:
            uses, self._used = self._used, {}
            self._book.note_uses(uses)


def _match(digest: bytes, tokens: Iterable[Token]) -> Token | None:
    """The last token with a digest. All are compared, each in constant time."""
    matching = None
    for token in tokens:
        if hmac.compare_digest(digest, token.digest.encode()):
            matching = token
    return matching
