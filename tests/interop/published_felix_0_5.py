"""What felix-client 0.5.0 must be able to do, as a program: test_published_felix.py runs it where that version is installed."""

import sys

import felix


def main(address: str, certificate: str) -> None:
    with felix.Client(address, tenant_id="t1", token="demo-token", ca_file=certificate) as client:
        for number in range(20):
            client.publish("t1", "a/b", "refused", b"x", ack="none")
            client.publish("t1", "default", "older", b"%d" % number, key=b"k", ack="per_message")
        with client.subscribe("t1", "default", "older", start="earliest") as events:
            got = [bytes(event.payload) for _, event in zip(range(20), events, strict=False)]
        assert got == [b"%d" % number for number in range(20)], got
        client.cache_put("t1", "default", "older", "k", b"v")
        assert client.cache_delete("t1", "default", "older", "k") == b"v"
        assert client.counter_add("t1", "default", "older", "n", 3) == 3
        assert client.stream_shards("t1", "default", "older") == 1
        (record,) = client.group_poll("t1", "default", "older", 0, "g", max_records=1)
        client.group_ack("t1", "default", "older", 0, "g", record.offset)


if __name__ == "__main__":
    main(*sys.argv[1:])
