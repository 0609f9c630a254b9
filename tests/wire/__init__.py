"""The five protocols packed and read by hand, from their documents: the other party's view of the bytes.

Tests, crash campaigns and fuzzers judge the broker with these modules. They import nothing of `quintet`, so that both sides
cannot be wrong in the same way; `tests/test_tidy.py::the_wire_shares_no_code` keeps it so. One word has one meaning in all:

    frame(...)         one frame as bytes; other builders (`publish`, `subscribe`, ...) are named after what they ask for
    split(data)        (whole frames, the bytes behind them); what is not a frame at all is a ValueError
    Client(address)    one blocking connection: `send` any bytes, `read` one frame, `ask` both
    Closed, Hang       the broker ended the connection; nothing came in time (connection.py)

`connection.py` is a TCP socket with a deadline, `quic.py` a QUIC connection, `websocket.py` has the frames of RFC 6455.
The rows of FlyMQ's sixty operations are not written a second time: flymq.py knows those that campaigns need, and tests of
the whole table take its layouts from the table and only header, texts and numbers from here.
"""
