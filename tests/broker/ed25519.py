"""Ed25519 by the book (RFC 8032, section 5.1), in integers: what forges with it shares nothing with what verifies.

It is slow and leaks its secrets through time, which a test may. Beside signing it can do what no honest library does: name
the points of small order, sign for them, and write a signature in a second spelling.
"""

import hashlib
from typing import Final

P: Final = 2**255 - 19
L: Final = 2**252 + 27742317777372353535851937790883648493
D: Final = -121665 * pow(121666, -1, P) % P
ROOT: Final = pow(2, (P - 1) // 4, P)  # of minus one

Point = tuple[int, int, int, int]  # x, y, z, t with x/z, y/z and t = xy/z
ZERO: Final[Point] = (0, 1, 1, 0)


def add(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % P
    b = (one[1] + one[0]) * (other[1] + other[0]) % P
    c = 2 * one[3] * other[3] * D % P
    d = 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(number: int, point: Point) -> Point:
    found = ZERO
    while number:
        if number & 1:
            found = add(found, point)
        point = add(point, point)
        number >>= 1
    return found


def encode(point: Point) -> bytes:
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def root_x(y: int) -> int | None:
    """The even x of a point with this y, if there is one."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P:
        return None
    return x if x % 2 == 0 else P - x


def point_at(y: int) -> Point | None:
    x = root_x(y)
    return None if x is None else (x, y, 1, x * y % P)


BASE: Final = point_at(4 * pow(5, -1, P) % P) or ZERO


def _secret(seed: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(seed).digest()
    number = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    return number, digest[32:]


def public_key(seed: bytes) -> bytes:
    return encode(times(_secret(seed)[0], BASE))


def challenge(r: bytes, public: bytes, message: bytes) -> int:
    return int.from_bytes(hashlib.sha512(r + public + message).digest(), "little") % L


def sign(seed: bytes, message: bytes) -> bytes:
    number, prefix = _secret(seed)
    nonce = int.from_bytes(hashlib.sha512(prefix + message).digest(), "little") % L
    r = encode(times(nonce, BASE))
    s = (nonce + challenge(r, public_key(seed), message) * number) % L
    return r + s.to_bytes(32, "little")


def again(signature: bytes) -> bytes:
    """The same signature in a second spelling: S + L, which stands for the same S."""
    return signature[:32] + (int.from_bytes(signature[32:], "little") + L).to_bytes(32, "little")


def small_order() -> list[Point]:
    """The eight points whose order divides 8."""
    y = 2
    while True:
        point = point_at(y)
        found = ZERO if point is None else times(L, point)
        powers = [times(number, found) for number in range(8)]
        if len({encode(each) for each in powers}) == 8:
            return powers
        y += 1


def sign_for_anybody(message: bytes) -> bytes:
    """A signature that is right for the neutral point as a public key, whatever the message says."""
    return encode(times(len(message), BASE)) + len(message).to_bytes(32, "little")
