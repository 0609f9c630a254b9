"""Writes a socket's address as clients write it: HOST:PORT, IPv6 in brackets."""


def shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
