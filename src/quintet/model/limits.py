"""Every bound of the broker that is not a matter of taste, with its unit, and the relations between them.

What an operator may want to change is a key in config.py whose default is named here.
"""

KIB = 1024
MIB = 1024 * KIB

TOPIC_NAME_BYTES_MAX = 255
TOPIC_ID_FIRST_USER = 16  # 0..15 are internal tables
TOPICS_MAX = 100_000
CELLS_MAX = 64  # of one broker
PARTITIONS_MAX = 1_000  # of one topic

BATCH_BYTES_MAX = 64 * MIB
BATCH_HEADER_BYTES = 64

# Of what publishers send; the kernel has the same numbers (kernel/pure_records.py).
HEADERS_MAX = 1_000  # of one record
HEADERS_BYTES_MAX = 64 * KIB  # names and values of one record together
HEADER_NAME_BYTES_MAX = 255  # of UTF-8
RECORD_TTL_MS_MAX = (1 << 32) - 1  # of a record in a record set
HEADER_PREFIX_RESERVED = b"quintet-"  # of names that only the broker writes
RECORDS_MAX = 1 << 20  # of one record set
RECORD_SET_BYTES_MAX = 32 * MIB

SEGMENT_HEADER_BYTES = 512
SEGMENT_BYTES_DEFAULT = 256 * MIB
SEGMENT_BYTES_MIN = 64 * KIB
INDEX_EVERY_BYTES = 64 * KIB
PREALLOCATE_FIRST_BYTES = 64 * KIB
PREALLOCATE_MAX_BYTES = 16 * MIB

READ_BUFFER_BYTES = 256 * KIB  # one for all connections of a listener: data is consumed before the next read
TURN_US = 5_000  # of the loop, for one connection; then the rest of its input or its backlog waits for a later turn
TURN_BYTES = READ_BUFFER_BYTES  # that a session is offered for the first time in one turn, beside an unfinished frame
LARGE_BYTES = MIB  # of what is inflated, copied or encoded: more is a thread's work (0.8 ms a MiB of page faults)
WRITE_HIGH_BYTES = MIB  # per connection; a cursor stops reading the log for it above this
WRITE_LOW_BYTES = 256 * KIB
WRITE_STALL_US = 10_000_000  # a peer that takes nothing for this long is cut
OUTPUT_BYTES_MAX = 256 * MIB  # unsent or being made for readers, over all connections
HANDSHAKE_US = 5_000_000  # from accept to authenticated
UNAUTHENTICATED_FRAME_BYTES_MAX = 16 * KIB

PASSWORD_BYTES_MIN_DEFAULT = 8
PASSWORD_BYTES_MAX = KIB
AUDIT_BYTES_DEFAULT = 64 * MIB

UNSYNCED_BYTES_MAX = 64 * MIB  # waiting for the disk, over all partitions; above it publishers are not read from
MEMORY_TOPIC_BYTES_DEFAULT = 64 * MIB
MEMORY_TOPICS_BYTES = 1024 * MIB  # of all memory topics together
ENCODED_FOR_BYTES = 16 * MIB  # the newest batches over all partitions: frames of them are kept for other subscribers
TAIL_CACHE_BYTES = 256 * MIB  # recent durable batches kept for readers at the tail, over all partitions

assert READ_BUFFER_BYTES < BATCH_BYTES_MAX
assert WRITE_LOW_BYTES < WRITE_HIGH_BYTES
assert PREALLOCATE_FIRST_BYTES <= PREALLOCATE_MAX_BYTES <= SEGMENT_BYTES_DEFAULT
assert UNSYNCED_BYTES_MAX >= BATCH_BYTES_MAX
EVENTS_BYTES_DEFAULT = 512 * MIB
