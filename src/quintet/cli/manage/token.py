"""`quintet token`: makes tokens for the doors Fast and Felix, and shows what a token contains.

Whoever holds the master secret, or a tenant's private key, makes tokens; no broker is asked, and none needs to run. The
rules are those by which the broker judges (quintet.broker.identity.tokens): what `mint` prints was verified by them, and `inspect`
says what they say. What is Felix's alone is in quintet.cli.manage.tenant_token.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from quintet.cli.main import EXIT_FAILED
from quintet.cli.manage.tenant_token import (
    allowed_rows,
    is_tenant_token,
    judge,
    keygen,
    mint_for_tenant,
    tenant_token_bytes_max,
)
from quintet.cli.terminal.common import Duration, json_option, lasting, now_ms, say_table, when
from quintet.cli.terminal.output import echo
from quintet.model.errors import AuthError, ConfigError, message_of

if TYPE_CHECKING:
    from quintet.broker.identity.tokens import Inspected

ALGORITHMS: Final = ("HS256", "HS384", "HS512")
PIPE_BYTES_MAX: Final = 64 * 1024  # of a token on stdin; far above what any door takes
TIMES: Final = ("exp", "nbf", "iat")

secret_file_option: Final = click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    help="File with the master secret (one line), readable by its owner only.",
)
secret_option: Final = click.option(
    "--secret",
    envvar="QUINTET_TOKEN_SECRET",
    help="The master secret (or QUINTET_TOKEN_SECRET). All users of this machine can see arguments: prefer --secret-file.",
)
dev_option: Final = click.option("--dev", is_flag=True, help="The secret of `quintet serve --dev`.")
algorithm_option: Final = click.option(
    "--alg", "algorithm", type=click.Choice(ALGORITHMS), default="HS256", help="Algorithm of the signature [HS256]."
)


@click.group()
def token() -> None:
    """Tokens for Fast and Felix: create, inspect, generate keys.

    \b
    quintet token mint --dev --sub ann --queue-key k1
    quintet token mint --secret-file master.key --sub ann --queue-key k1 --permissions rotate --expires 10m
    quintet token inspect eyJhbGciOi... --secret-file master.key
    quintet token keygen --out keys
    quintet token mint --key-file keys/key.pem --tenant t1 --sub ann --allow 'stream.publish:stream:t1/default/*'
    """


token.add_command(keygen)


# -- mint -------------------------------------------------------------------------------------------------------------


class Permissions(click.ParamType[list[str]]):
    """Words with commas between them."""

    name = "permissions"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        from quintet.broker.identity.tokens import PERMISSIONS

        words = [word.strip() for word in str(value).split(",") if word.strip()]
        for word in words:
            if word not in PERMISSIONS:
                self.fail(f"{word!r} is not a permission; there are {', '.join(sorted(PERMISSIONS))}", param, ctx)
        return list(dict.fromkeys(words))


@token.command()
@click.option("--sub", "--subject", "subject", required=True, help="Who the token speaks for.")
@click.option("--queue-key", help="Fast: the key of the topics it is for.")
@click.option("--tenant", help="Felix: the tenant it is for.")
@click.option(
    "--allow",
    multiple=True,
    help="Felix: action:resource, like stream.subscribe:stream:t1/default/*; repeatable.",
)
@click.option(
    "--permissions",
    type=Permissions(),
    default="publish,subscribe",
    help="publish, subscribe, rotate, create, with commas [publish,subscribe].",
)
@click.option("--expires", "expires_ms", type=Duration(), default="1h", help="Time until it expires; 0: never [1h].")
@click.option("--issuer", help="`iss`, if the broker requires one [Felix: felix-auth].")
@click.option("--audience", help="`aud`, if the broker requires one [Felix: felix-broker].")
@click.option("--key-file", type=click.Path(path_type=Path), help="Felix: the private key, as `keygen` makes it.")
@click.option("--kid", default="", help="Felix: name of the key in the broker's key set [its thumbprint].")
@secret_file_option
@secret_option
@dev_option
@algorithm_option
@click.option(
    "--no-typ", is_flag=True, help="Leave the type out of the header, which leaves 12 more bytes for the claims."
)
@json_option
@click.pass_context
def mint(
    ctx: click.Context,
    subject: str,
    queue_key: str | None,
    tenant: str | None,
    allow: tuple[str, ...],
    permissions: list[str],
    expires_ms: int,
    issuer: str | None,
    audience: str | None,
    key_file: Path | None,
    kid: str,
    secret_file: Path | None,
    secret: str | None,
    dev: bool,
    algorithm: str,
    no_typ: bool,
    as_json: bool,
) -> None:
    """Create a token: for Fast with --queue-key, for Felix with --tenant. It is printed on stdout, its size on stderr.

    \b
    quintet token mint --dev --sub ann --queue-key k1
    quintet token mint --dev --sub owner --queue-key k1 --permissions create,rotate --expires 5m
    quintet token mint --secret-file master.key --alg HS512 --no-typ --sub ann --queue-key k1 --expires 7d
    quintet token mint --dev --sub ann --tenant t1 --allow 'stream.publish:stream:t1/default/*'
    quintet token mint --key-file key.pem --sub ann --tenant t1 --allow 'cache.read:cache:t1/*' --expires 1h
    """
    _one_kind(ctx, tenant)
    key = _secret(secret_file, secret, dev)
    if tenant is not None:
        mint_for_tenant(subject, tenant, list(allow), (issuer, audience), key_file, key, kid, expires_ms, as_json)
        return
    if key is None:
        raise click.UsageError(
            "There is no secret to sign with: give --secret-file, --secret, QUINTET_TOKEN_SECRET or --dev."
        )
    claims: dict[str, object] = {"sub": subject, "queue_key": queue_key, "permissions": permissions}
    _mint_for_queue(claims, (issuer or "", audience or ""), key, algorithm, expires_ms, not no_typ, as_json)


def given(ctx: click.Context) -> set[str]:
    """The parameters that stand on the command line, as opposed to defaults and variables."""
    return {name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}


def _one_kind(ctx: click.Context, tenant: str | None) -> None:
    """No option of the other door, and one of each that exclude each other."""
    named = given(ctx)
    if ("queue_key" in named) == (tenant is not None):
        raise click.UsageError("Give either --queue-key, for a token of Fast, or --tenant, for a token of Felix.")
    others = {"--permissions": "permissions", "--alg": "algorithm", "--no-typ": "no_typ"}
    if tenant is None:
        others = {"--allow": "allow", "--key-file": "key_file", "--kid": "kid"}
    for option, name in others.items():
        if name in named:
            raise click.UsageError(f"{option} is not for tokens of {'Fast' if tenant is None else 'Felix'}.")
    if "key_file" in named and named & {"secret_file", "secret", "dev"}:
        raise click.UsageError("--key-file excludes --secret-file, --secret and --dev.")


def _mint_for_queue(
    claims: dict[str, object],
    parties: tuple[str, str],
    key: bytes,
    algorithm: str,
    expires_ms: int,
    typ: bool,
    as_json: bool,
) -> None:
    from quintet.broker.identity import tokens

    now, (issuer, audience) = now_ms(), parties
    claims |= {name: value for name, value in (("iss", issuer), ("aud", audience)) if value}
    expires_s = -(-(now + expires_ms) // 1000)
    if expires_ms:
        claims["exp"] = expires_s
    made = tokens.mint(key, claims, algorithm, typ=typ)
    options = tokens.TokenOptions((key,), (algorithm,), issuer=issuer, audience=audience)
    tokens.Tokens(options).verify(made, now * 1000)
    room = tokens.TOKEN_BYTES_MAX - len(made)
    if as_json:
        echo(json.dumps({"token": made.decode(), "bytes": len(made), "bytes_left": room, "claims": claims}))
        return
    echo(made.decode())
    lives = f"expires {when(expires_s * 1000)[:19]}" if expires_ms else "never expires"
    echo(f"{len(made)} of {tokens.TOKEN_BYTES_MAX} bytes, {lives}", err=True)


def _secret(file: Path | None, text: str | None, dev: bool) -> bytes | None:
    """The one that was given. The variable is a default: a flag beside it wins."""
    if dev and file is not None:
        raise click.UsageError("--dev and --secret-file exclude each other.")
    if dev:
        from quintet.config import DEV_FAST_MASTER_SECRET

        return DEV_FAST_MASTER_SECRET.encode()
    if file is not None:
        from quintet.config.fields import read_secret

        try:
            return read_secret(file).encode()
        except ValueError as error:
            raise ConfigError(message_of(error)) from error
    return None if text is None else text.encode(errors="surrogateescape")


# -- inspect ----------------------------------------------------------------------------------------------------------


@token.command()
@click.argument("text", metavar="[TOKEN]", default="-")
@secret_file_option
@secret_option
@dev_option
@algorithm_option
@click.option(
    "--jwks-file", type=click.Path(path_type=Path), help="Felix: the key set of the tenant, to check the signature."
)
@click.option("--issuer", help="Felix: what `iss` must be; '': anything [felix-auth].")
@click.option("--audience", help="Felix: what `aud` must name; '': anything [felix-broker].")
@json_option
@click.pass_context
def inspect(
    ctx: click.Context,
    text: str,
    secret_file: Path | None,
    secret: str | None,
    dev: bool,
    algorithm: str,
    jwks_file: Path | None,
    issuer: str | None,
    audience: str | None,
    as_json: bool,
) -> None:
    """Show what a token says (- or none: read it from stdin), and whether a broker would accept it. Exit code 1 if not.

    \b
    quintet token inspect eyJhbGciOi...
    quintet token mint --dev --sub ann --queue-key k1 | quintet token inspect --dev
    quintet token inspect --secret-file master.key < token.txt
    quintet token inspect --jwks-file keys/jwks.json < felix-token.txt
    """
    from quintet.broker.identity import tokens

    data = sys.stdin.buffer.read(PIPE_BYTES_MAX).strip() if text == "-" else text.encode(errors="surrogateescape")
    found = tokens.inspect(data)
    key, now = _secret(secret_file, secret, dev), now_ms()
    felix = is_tenant_token(found)
    if felix:
        if found.header.get("alg") == "EdDSA" and not given(ctx) & {"secret_file", "secret", "dev"}:
            key = None  # the variable is for tokens that have a secret
        signature, verdict = judge(data, found, key, jwks_file, issuer, audience)
    else:
        signature, verdict = _judged(data, found, key, algorithm, now)
    allows = allowed_rows(found) if felix else _rights(found)
    if as_json:
        facts = {"header": found.header, "claims": found.claims, "claim_bytes": found.sizes, "bytes": found.size}
        facts |= {"door": "felix" if felix else "fast", "allows": allows}
        echo(json.dumps(facts | {"signature": signature, "refused": verdict}, indent=2))
    else:
        _say(found, allows, tenant_token_bytes_max() if felix else tokens.TOKEN_BYTES_MAX, now)
        _say_verdict(signature, verdict)
    ctx.exit(EXIT_FAILED if verdict else 0)


def _judged(token: bytes, found: "Inspected", key: bytes | None, algorithm: str, now: int) -> tuple[str, str]:
    """What is known about the signature, and why a broker would refuse the token ("" if it would not)."""
    from quintet.broker.identity import tokens

    options = tokens.TokenOptions(() if key is None else (key,), (algorithm,))
    signature = "not checked"
    try:
        if key is not None:
            tokens.Tokens(options).opened(token)
            signature = "right"
        elif found.size > options.token_bytes_max:
            tokens.refuse("size")
        tokens.check_header(found.header, options.algorithms)
        tokens.check_claims(found.claims, options, now * 1000)
    except AuthError as error:
        why = error.message.removeprefix("token refused: ")
        return ("wrong" if why in (tokens.RULES["signature"], tokens.RULES["signature size"]) else signature), why
    return signature, ""


def _rights(found: "Inspected") -> list[tuple[str, str, str]]:
    """(permission, on what, what comes of it) of a token of Fast."""
    from quintet.broker.identity.tokens import PERMISSIONS

    said = found.claims.get("permissions", [])
    words = said if isinstance(said, list) else [said]
    return [
        (
            word,
            "topics with its queue_key",
            "allowed" if word in PERMISSIONS else "nothing: no permission of this broker",
        )
        for word in words
        if isinstance(word, str)
    ]


def _say(found: "Inspected", allows: list[tuple[str, str, str]], most: int, now: int) -> None:
    rows = [("header", name, _value(value), "-") for name, value in found.header.items()]
    for name, value in found.claims.items():
        said = _time(value, now) if name in TIMES else _value(value)
        rows.append(("claim", name, said, str(found.sizes[name])))
    say_table(("part", "name", "value", ">bytes"), rows, "an empty token")
    say_table(("action", "on", "comes to"), allows, "it allows nothing")
    echo(f"size: {found.size} of {most} bytes")


def _say_verdict(signature: str, verdict: str) -> None:
    echo(f"signature: {signature}")
    if verdict:
        echo(f"a broker refuses it: {verdict}")
    else:
        echo("a broker takes it" + ("" if signature == "right" else ", if the signature is right"))


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_SECONDS_MAX: Final = 253_402_300_799  # the end of year 9999


def _time(value: object, now: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _SECONDS_MAX:
        return f"{_value(value)} (no time)"
    away = value - now / 1000
    return f"{value}: {when(int(value * 1000))[:19]}, " + (
        f"in {lasting(away)}" if away >= 0 else f"{lasting(-away)} ago"
    )
