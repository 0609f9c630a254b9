"""TLS to a real broker: an authority by ?ca= or by context, and what is said when it is not trusted."""

import ssl
from pathlib import Path

import pytest
import trustme

import quintet
from quintet.client.core.errors import BadUrl, ConnectionLost
from quintet.client.links.fast import Queues
from tests.client.server import running


async def test_tls(tmp_path: Path, topic: str) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(ca)
    certificate.private_key_pem.write_to_path(key)
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(cert, append=True)
    files = {"QUINTET_LISTENERS__BLIPMQ__TLS_CERT": str(cert), "QUINTET_LISTENERS__BLIPMQ__TLS_KEY": str(key)}
    with running(**files) as server:
        where = f":dev-key@127.0.0.1:{server.port}"
        async with quintet.connect(f"blipmqs://{where}?ca={ca}") as bus, bus.subscribe(topic) as sub:
            await bus.publish_batch(topic, [b"x" * 1_000] * 500)
            seen = 0
            while seen < 500:
                batch = await sub.get_batch()
                await batch.ack()
                seen += len(batch)
        context = ssl.create_default_context(cafile=ca)
        async with quintet.connect(f"blips://{where}", tls=context) as bus:
            assert (await bus.publish(topic, b"x")).durable
        with pytest.raises(ConnectionLost, match="TLS") as caught:
            async with quintet.connect(f"blipmqs://{where}"):
                pass
        assert "?ca=" in caught.value.hint
        with pytest.raises(BadUrl, match="ca="):
            async with quintet.connect(f"blipmqs://{where}?ca={tmp_path / 'missing.pem'}"):
                pass
        with pytest.raises(ConnectionLost):
            async with quintet.connect(f"blipmq://{where}"):
                pass


async def test_flymq_and_client_certificates(tmp_path: Path, topic: str) -> None:
    authority, strangers = trustme.CA(), trustme.CA()
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(ca)
    server_side = authority.issue_cert("127.0.0.1")
    server_side.private_key_pem.write_to_path(key)
    for blob in server_side.cert_chain_pems:
        blob.write_to_path(cert, append=True)
    mine, foreign = tmp_path / "mine.pem", tmp_path / "foreign.pem"
    authority.issue_cert("worker@example.org").private_key_and_cert_chain_pem.write_to_path(mine)
    strangers.issue_cert("worker@example.org").private_key_and_cert_chain_pem.write_to_path(foreign)
    files = {"CERT": cert, "KEY": key, "CLIENT_CA": ca}
    with running(**{f"QUINTET_LISTENERS__FLYMQ__TLS_{name}": str(path) for name, path in files.items()}) as server:
        where = f"flymqs://admin:admin@127.0.0.1:{server.ports['flymq']}?ca={ca}"
        async with quintet.connect(f"{where}&cert={mine}") as bus:
            assert (await bus.publish(topic, b"x" * 100_000)).offset == 0
            async with bus.subscribe(topic, group="g", start="earliest") as sub:
                assert len((await sub.get()).value) == 100_000
        for refused in (where, f"{where}&cert={foreign}"):
            with pytest.raises(ConnectionLost):
                async with quintet.connect(refused):
                    pass
        with pytest.raises(BadUrl, match="cert="):
            async with quintet.connect(f"{where}&cert={tmp_path / 'missing.pem'}"):
                pass


async def test_fast_and_peerbus(tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_PEERBUS_SECRET", "a secret that peers share, of 32 bytes")
    authority = trustme.CA()
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(ca)
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(key)
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(cert, append=True)
    files = {
        f"QUINTET_LISTENERS__{door}__TLS_{name}": str(path)
        for door in ("FAST", "PEERBUS", "PEERBUS_TCP")
        for name, path in (("CERT", cert), ("KEY", key))
    }
    with running(**files) as server:
        async with quintet.connect(f"{server.fast.replace('fast', 'fasts', 1)}?ca={ca}") as bus:
            await Queues(bus).create(topic)
            async with bus.subscribe(topic) as sub:
                await bus.publish_batch(topic, [b"x" * 1_000] * 500)
                seen = 0
                while seen < 500:
                    seen += len(await sub.get_batch())
        for lines in (False, True):
            url = f"{server.peer('alice', lines=lines).replace('peerbus', 'peerbuss', 1)}&ca={ca}"
            async with quintet.peer(url) as alice:
                await alice.send("alice", "x" * 500_000)
                got = await alice.receive()
                assert len(got.body) == 500_000
                await got.ack()
            with pytest.raises(ConnectionLost, match="TLS"):
                await quintet.peer(url.partition("&ca=")[0]).open()
            with pytest.raises(ConnectionLost):
                await quintet.peer(server.peer("alice", lines=lines), timeout=30).open()
