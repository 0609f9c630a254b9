"""Reads what all signed tokens have in common: three parts, canonical base64url, strict JSON, times in seconds.

Two kinds of token come to the broker: those of the Fast door (quintet.broker.identity.tokens) and those of Felix tenants
(quintet.broker.identity.tenant_tokens). Which keys count and which claims are wanted differs, and is theirs. How the text is taken
apart does not, and is here, so that a forged text meets the same rules at both doors. Nothing here knows a key, a clock
or a door, and no error repeats a part of a token.
"""

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Final, NoReturn

from quintet.broker.identity.access import check_user_name
from quintet.model.errors import AuthError, BadName, BadRequest
from quintet.model.json_value import JsonObject
from quintet.model.strict_json import NotStrictJson, StrictJson

SECOND: Final = 1_000_000  # microseconds
JSON_DEPTH_MAX: Final = 8  # objects and arrays inside each other
INT_MAX: Final = (1 << 63) - 1
INT_DIGITS_MAX: Final = 20  # with a sign; longer texts are not even made a number
SECONDS_MAX: Final = 253_402_300_799  # the end of year 9999; what is above was written in milliseconds
HEADER_FIELDS: Final = frozenset({"alg", "typ", "kid"})

# Why a token is refused: the name of the rule, and what is said about it.
RULES: Final = {
    "empty": "it is empty",
    "size": "it is longer than a token may be here",
    "parts": "it does not have exactly three parts",
    "spelling": "a part is not base64url in its one spelling: no padding, no other characters, no spare bits",
    "header json": "its header is not a JSON object in UTF-8, or has a key twice",
    "header field": "its header has a field other than alg, typ and kid",
    "kid": "its kid is not a string",
    "typ": "its typ is not JWT",
    "unsigned": "it is not signed",
    "algorithm": "its algorithm is not one that this broker accepts",
    "signature size": "its signature does not have the length its algorithm gives",
    "signature": "its signature is wrong",
    "claims json": "its claims are not a JSON object in UTF-8, or have a key twice",
    "sub": "its sub is not the name of a user",
    "exp": "its exp is not a number of seconds since 1970",
    "nbf": "its nbf is not a number of seconds since 1970",
    "iat": "its iat is not a number of seconds since 1970",
    "no exp": "it has no exp, and this broker requires one",
    "iss": "its iss is not the issuer this broker trusts",
    "aud": "its aud does not name this broker",
    "expired": "it has expired",
    "too early": "it is not valid yet",
}
HINTS: Final = {
    "header field": "sign with a header of alg and typ",
    "expired": "get a new token, and compare the clocks",
    "too early": "wait, and compare the clocks",
}


def refuse(rule: str, rules: Mapping[str, str] = RULES, hints: Mapping[str, str] = HINTS) -> NoReturn:
    """Raise the AuthError of a rule. What led to it may hold parts of the token, so it is not shown with it."""
    raise AuthError(f"token refused: {rules[rule]}", hint=hints.get(rule, "")) from None


# -- parts ------------------------------------------------------------------------------------------------------------


def split(token: bytes, most: int) -> list[bytes]:
    """Header, claims and signature, still in base64url."""
    if not token:
        refuse("empty")
    if len(token) > most:
        refuse("size")
    parts = token.split(b".", 3)
    if len(parts) != 3:
        refuse("parts")
    return parts


def bytes_of(part: bytes) -> bytes:
    """What a part stands for. The decoder is lenient; that the bytes have exactly this spelling is the check."""
    try:
        found = urlsafe_b64decode(part + b"==="[: -len(part) % 4])
    except (binascii.Error, ValueError):
        refuse("spelling")
    if spelled(found) != part:
        refuse("spelling")
    return found


def spelled(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def decoded(part: bytes, rule: str) -> JsonObject:
    """The JSON object in a part, or a refusal by `rule`."""
    found = json_object(bytes_of(part))
    if found is None:
        refuse(rule)
    return found


# -- header and claims ------------------------------------------------------------------------------------------------


def says_unsigned(algorithm: object) -> bool:
    """Whether this `alg` is one of the ways to say that there is no signature."""
    return algorithm is None or (type(algorithm) is str and algorithm.strip().lower() in ("", "none"))


def check_header_fields(header: JsonObject) -> str:
    """All of a header but its algorithm; returns its kid, "" if it has none."""
    if not HEADER_FIELDS.issuperset(header):
        refuse("header field")
    typ = header.get("typ", "JWT")
    if type(typ) is not str or typ.upper() != "JWT" or not typ.isascii():
        refuse("typ")
    kid = header.get("kid", "")
    if type(kid) is not str:
        refuse("kid")
    return kid


def subject(value: object) -> str:
    if type(value) is not str:
        refuse("sub")
    try:
        return check_user_name(value)
    except BadName:
        refuse("sub")


def seconds(claims: JsonObject, name: str) -> int | None:
    """The time of a claim in whole microseconds. RFC 7519, 2: a number of seconds, fractions allowed."""
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        refuse(name)
    return int(value * SECOND)


def check_party(claims: JsonObject, issuer: str, audience: str) -> None:
    """Who made the token, and for whom; what is empty is not looked at."""
    if issuer and claims.get("iss") != issuer:
        refuse("iss")
    if audience and not _names(claims.get("aud"), audience):
        refuse("aud")


def _names(value: object, audience: str) -> bool:
    audiences = [value] if type(value) is str else value
    return isinstance(audiences, list) and all(type(each) is str for each in audiences) and audience in audiences


def check_times(expires: int | None, not_before: int | None, leeway_us: int, now: int) -> tuple[int, int]:
    """(until, since) in microseconds with the leeway in them, 0 for none; a refusal if `now` is not between them."""
    until = since = 0
    if expires is not None:
        until = expires + leeway_us
        if now >= until:
            refuse("expired")
    if not_before is not None:
        since = max(0, not_before - leeway_us)
        if now < since:
            refuse("too early")
    return until, since


# -- JSON that can be read one way only -------------------------------------------------------------------------------


def _int(text: str) -> int:
    if len(text) > INT_DIGITS_MAX or abs(found := int(text)) > INT_MAX:
        raise NotStrictJson
    return found


_read: Final = StrictJson(JSON_DEPTH_MAX, parse_int=_int, half_pairs=True).read


def json_object(data: bytes) -> JsonObject | None:
    """The one object this JSON text is, with each key once; None if it is anything else."""
    try:
        found = _read(data)
    except NotStrictJson:  # its text repeats the input
        return None
    return found if isinstance(found, dict) else None


def json_text(value: Mapping[str, object], errors: str = "strict") -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors=errors)
    except (TypeError, ValueError, RecursionError):
        raise BadRequest("the claims of a token are texts, numbers and lists of them, in UTF-8") from None
