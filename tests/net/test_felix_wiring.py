"""The Felix door as the server opens, reloads, shows and closes it, in a process of its own. No frame of the protocol."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import trustme

from quintet.net.certificates import CERTIFICATE_NAME, KEY_NAME, development_certificate
from quintet.net.quic import listener as quic
from tests.abuse.process import Broker, config
from tests.net.quic_peers import NATIVE, connected, until

FELIX = "[listeners.felix]\nport = 0\n"


def with_files(certificate: Path, key: Path, more: str = "") -> str:
    return config(("alice",), rest=f'{FELIX}tls_cert = "{certificate}"\ntls_key = "{key}"\n{more}')


def issue(folder: Path) -> bytes:
    """New files of a new authority, which is returned."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (folder / "key.pem").write_bytes(issued.private_key_pem.bytes())
    return authority.cert_pem.bytes()


def fetched(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
    return text


async def enters(address: str, ca: bytes, identity: tuple[bytes, bytes] = (b"", b"")) -> bool:
    """Whether a client that trusts this authority is let in: the door reads what it sends, and ends the connection for that."""
    async with connected(address, ca, identity) as peer:
        if peer.closed is None:  # a client certificate is judged after the client's side of the handshake
            peer.send(peer.open(), b"no frame of Felix", end=True)
            await until(lambda: peer.closed is not None)
        assert peer.closed is not None
        return peer.connected and "the magic is not FLX1" in peer.closed[1]


async def test_it_makes_itself_a_certificate_and_keeps_it(tmp_path: Path) -> None:
    text = config(("alice",), rest=FELIX)
    with Broker(tmp_path, text) as broker:
        ca = (broker.data / "tls" / CERTIFICATE_NAME).read_bytes()
        assert await enters(broker.listeners["felix"], ca)
    with Broker(tmp_path, text) as broker:
        assert await enters(broker.listeners["felix"], ca)
        broker.reload(config(("alice",), rest=FELIX + 'certificate_names = ["localhost", "elsewhere.example"]\n'))
        broker.await_said('"event": "reloaded"')
        fresh = (broker.data / "tls" / CERTIFICATE_NAME).read_bytes()
        assert fresh != ca
        assert await enters(broker.listeners["felix"], fresh)
        assert not await enters(broker.listeners["felix"], ca)


async def test_certificates_are_read_again_and_bad_ones_refused(tmp_path: Path) -> None:
    old = issue(tmp_path)
    with Broker(tmp_path, with_files(tmp_path / "cert.pem", tmp_path / "key.pem")) as broker:
        address = broker.listeners["felix"]
        async with connected(address, old) as live:
            (tmp_path / "key.pem").write_bytes(development_certificate(tmp_path / "other", ("localhost",))[1])
            broker.reload()
            assert "does not belong to the certificate" in broker.await_said("reload_refused")
            assert await enters(address, old)
            new = issue(tmp_path)
            broker.reload()
            broker.await_said('"event": "reloaded"')
            assert await enters(address, new)
            assert not await enters(address, old)
            assert live.closed is None, "the open connection goes on"


@pytest.mark.skipif(NATIVE is None, reason="the kernel is pure: its twin does not check certificates of clients")
def test_a_reload_that_this_door_refuses_changes_no_other_door(tmp_path: Path) -> None:
    issue(tmp_path)
    people = tmp_path / "people.pem"
    trustme.CA().cert_pem.write_to_path(people)
    files = f'tls_cert = "{tmp_path / "cert.pem"}"\ntls_key = "{tmp_path / "key.pem"}"\n'
    text = config(("alice",), files, f'{FELIX}{files}tls_client_ca = "{people}"\n')
    with Broker(tmp_path, text) as broker:
        host, _, port = broker.address.rpartition(":")
        before = ssl.get_server_certificate((host, int(port)))
        issue(tmp_path)
        people.write_text("no authority")
        broker.reload()
        broker.await_said("reload_refused")
        assert ssl.get_server_certificate((host, int(port))) == before


def test_files_that_cannot_be_used_are_one_clear_line(tmp_path: Path) -> None:
    development_certificate(tmp_path / "one", ("localhost",))
    development_certificate(tmp_path / "two", ("localhost",))
    said = Broker(tmp_path, with_files(tmp_path / "one" / CERTIFICATE_NAME, tmp_path / "two" / KEY_NAME)).refuses()
    assert "does not belong to the certificate" in said
    assert "Traceback" not in said


async def test_an_authority_as_certificate_is_warned_about(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.private_key_pem.write_to_path(tmp_path / "ca-key.pem")
    with Broker(tmp_path, with_files(tmp_path / "ca.pem", tmp_path / "ca-key.pem")) as broker:
        assert "published clients refuse" in broker.await_said("felix_certificate_is_authority")


@pytest.mark.skipif(NATIVE is None, reason="the kernel is pure: its twin does not check certificates of clients")
async def test_clients_must_show_a_certificate_where_authorities_are_given(tmp_path: Path) -> None:
    ca = issue(tmp_path)
    people = trustme.CA()
    people.cert_pem.write_to_path(tmp_path / "people.pem")
    good, bad = people.issue_cert("ann"), trustme.CA().issue_cert("ann")
    text = with_files(tmp_path / "cert.pem", tmp_path / "key.pem", f'tls_client_ca = "{tmp_path / "people.pem"}"\n')
    with Broker(tmp_path, text) as broker:
        address = broker.listeners["felix"]
        assert await enters(address, ca, (good.cert_chain_pems[0].bytes(), good.private_key_pem.bytes()))
        assert not await enters(address, ca, (bad.cert_chain_pems[0].bytes(), bad.private_key_pem.bytes()))
        assert not await enters(address, ca)


async def test_the_end_is_told_with_its_code_and_figures_are_shown(tmp_path: Path) -> None:
    text = config(("alice",), rest=FELIX).replace("[listeners.admin]\nenabled = false", "[listeners.admin]\nport = 0")
    with Broker(tmp_path, text) as broker:
        ca = (broker.data / "tls" / CERTIFICATE_NAME).read_bytes()
        async with connected(broker.listeners["felix"], ca) as peer:
            metrics = await asyncio.to_thread(fetched, f"http://{broker.listeners['admin']}/metrics")
            assert 'quintet_quic_handshakes_total{door="felix"} 1' in metrics
            assert 'quintet_quic_handshakes_open{door="felix"} 0' in metrics
            assert 'quintet_connections{door="felix"} 1' in metrics
            broker.process.send_signal(signal.SIGTERM)
            await until(lambda: peer.closed is not None)
            assert peer.closed is not None and peer.closed[0] == quic.CODE_SHUTTING_DOWN
        assert broker.process.wait(60) == 0


def test_without_kernel_and_aioquic_the_door_stays_shut(tmp_path: Path) -> None:
    (tmp_path / "quintet.toml").write_text(config(("alice",), rest=FELIX))
    hide = "import sys; sys.modules['aioquic'] = None; from quintet.cli.main import main; main()"
    command = [sys.executable, "-c", hide, "serve", "--config", "quintet.toml", "--data", "data", "--print-ready"]
    with (tmp_path / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors, env=os.environ | {"QUINTET_PURE": "1"}
        )
    try:
        assert process.stdout is not None
        listeners = json.loads(process.stdout.readline())["listeners"]
        assert "felix" not in listeners and "blipmq" in listeners
        assert "felix_door_shut" in (tmp_path / "stderr").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
