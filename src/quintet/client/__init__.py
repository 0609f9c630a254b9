"""The Python client: one API for every door. Users reach it as `quintet.connect` and `quintet.sync.connect`.

    url.py            which door, where, with which secret
    hosts.py          which host of a URL is tried next, and what is said when none answers
    bus.py            what users hold: publish, subscribe, producer, transaction, request
    producer.py       many small sends gathered into few large writes
    idempotent.py     numbers that make a retry no duplicate
    source.py         what a subscription reads from, and the queue that it fills
    subscription.py   a bounded queue between a source and an iterator, and the acknowledgements back
    push.py           the source whose server delivers by itself
    group.py          the source that asks: membership of a group and commits; fetcher.py has its questions, partition.py its counts
    reading.py        reads by offset and by time, without a subscription
    many.py           the source of several topics: a list, or a pattern that the broker matches
    consuming.py      handlers for a subscription: workers, retries, dead letters, a graceful stop
    asking.py         requests and replies
    transaction.py    all or nothing
    telemetry.py      whether a bus has spans and metrics; traced.py has the classes that make them, spans.py what they say
    values.py         bytes, text, JSON and models, both ways
    quiet.py          keeps the loggers of libraries underneath silent
    message.py        what users get: Ack, Message, MessageBatch
    base.py           what a door must offer (ClientConnection), and a connection that comes back by itself (Channel)
    publishing.py     the publish queue of all doors: calls of one turn, their time-outs and their outcomes
    blipmq.py         the BlipMQ door; the only file that knows its frames
    flymq.py          the FlyMQ door, alike
    fast.py           the Fast door, alike, and what only it has: queues with keys
    peerbus.py        the peerbus door, alike: one connection for all connections of a bus (peerbus_wire.py); peerbus_ws.py has its WebSocket
    mailbox.py        the source of that door: verified, once, acknowledged after use
    felix.py          the Felix door: one QUIC connection for all connections of a bus, a stream for each; felix_wire.py has its
                      frames, felix_source.py its subscriptions, quic.py the connection
    kv.py             the cache of that door as a mapping; mapped.py has the operators of its blocking twin
    peer.py           what agents hold in place of a bus: send, broadcast, peers, messages
    manage.py         topics, groups, schemas and the rest by noun, over bus.request; manage_access.py has users and rules
    errors.py         what can go wrong, and the codes that say so
    sync.py           the blocking twin: not in Git, written by generate.py from the files above when the package is built or installed

Nothing here imports the server. This file imports nothing, so that `import quintet` stays quick.
"""
