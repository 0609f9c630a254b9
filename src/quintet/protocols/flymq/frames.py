"""Every operation of FlyMQ in one table: codes, fields, rights. Encoding, decoding, the protocol README, the fuzz corpus
and `quintet tail --hex` are all made from it; no operation is packed by hand anywhere else (the kernel's PRODUCE and
FETCH are the fast twins of their rows here, and a test holds them together).

    0      1      2      3       4         8
    | 0xAF | 0x01 | op   | flags | length  | payload ... |        integers are big-endian

    flags   bit 0      binary, always set in replies
            bits 1-3   the payload is compressed: 0 no, 1 gzip, 2 lz4, 3 zstd, 4 snappy
            bits 5-7   the same numbers: what the client wants its reply compressed with (ours; 0 = as the document has it)

A layout is a line of text, field by field in wire order:

    topic:str16            a scalar: bool i32 u32 i64 u64, str8/str16 (u8/u16 length, UTF-8), bytes32 (u32 length)
    name:str16!            the same, and not empty
    roles:str16*           u32 count, then that many
    rows:{a:i32 b:u64}*    u32 count, then that many structures;   *16 with a u16 count
    rows#  rows:{...}+     count and structures in two places
    query:({...})          a structure behind its length in bytes (u32);   ({...})* a counted list of those
    [a:i32 b:i32 [c:u64]]  may be left off the end, all of a bracket or nothing
"""

import struct
from typing import Final, Literal, NamedTuple

from quintet.model import limits
from quintet.model.rights import Right

HEADER: Final = struct.Struct(">BBBBI")
HEADER_BYTES: Final = HEADER.size
CODE_AT: Final = 2  # in a frame
MAGIC: Final = 0xAF
VERSION: Final = 1
FRAME_BYTES_MAX: Final = 33_554_432  # of the payload (document, "Constants")
LARGE_BYTES: Final = limits.LARGE_BYTES  # of a payload or message: a thread inflates and copies it

BINARY: Final = 0x01
COMPRESSION_MASK: Final = 0x0E
COMPRESSION_SHIFT: Final = 1
ACCEPT_MASK: Final = 0xE0
ACCEPT_SHIFT: Final = 5
CODECS: Final = {1: "gzip", 2: "lz4", 3: "zstd", 4: "snappy"}

PRODUCE: Final = 0x01
CONSUME: Final = 0x02
CREATE_TOPIC: Final = 0x03
METADATA: Final = 0x04
SUBSCRIBE: Final = 0x05
COMMIT: Final = 0x06
FETCH: Final = 0x07
LIST_TOPICS: Final = 0x08
DELETE_TOPIC: Final = 0x09
CONSUME_ZERO_COPY: Final = 0x0A
FETCH_BINARY: Final = 0x0B
PEEK: Final = 0x0C
ALTER_TOPIC: Final = 0x0D
PURGE_TOPIC: Final = 0x0E
MATCH_TOPICS: Final = 0x0F
PRODUCE_RECORDS: Final = 0x16
FETCH_RECORDS: Final = 0x17
REGISTER_SCHEMA: Final = 0x10
GET_SCHEMA: Final = 0x11
LIST_SCHEMAS: Final = 0x12
VALIDATE_SCHEMA: Final = 0x13
PRODUCE_WITH_SCHEMA: Final = 0x14
DELETE_SCHEMA: Final = 0x15
FETCH_DLQ: Final = 0x20
REPLAY_DLQ: Final = 0x21
PURGE_DLQ: Final = 0x22
DEAD_LETTER: Final = 0x23
LIST_DLQ: Final = 0x24
PRODUCE_DELAYED: Final = 0x30
CANCEL_DELAYED: Final = 0x31
PRODUCE_WITH_TTL: Final = 0x35
TXN_BEGIN: Final = 0x40
TXN_COMMIT: Final = 0x41
TXN_ROLLBACK: Final = 0x42
TXN_PRODUCE: Final = 0x43
CLUSTER_JOIN: Final = 0x50
CLUSTER_LEAVE: Final = 0x51
CLUSTER_STATUS: Final = 0x52
CLUSTER_METADATA: Final = 0x53
GET_OFFSET: Final = 0x60
RESET_OFFSET: Final = 0x61
LIST_GROUPS: Final = 0x62
DESCRIBE_GROUP: Final = 0x63
GET_LAG: Final = 0x64
DELETE_GROUP: Final = 0x65
SEEK_TO_TIMESTAMP: Final = 0x66
AUTH: Final = 0x70
AUTH_RESPONSE: Final = 0x71
WHOAMI: Final = 0x72
USER_CREATE: Final = 0x73
USER_DELETE: Final = 0x74
USER_UPDATE: Final = 0x75
USER_LIST: Final = 0x76
USER_GET: Final = 0x77
ACL_SET: Final = 0x78
ACL_GET: Final = 0x79
ACL_DELETE: Final = 0x7A
ACL_LIST: Final = 0x7B
PASSWORD_CHANGE: Final = 0x7C
ROLE_LIST: Final = 0x7D
AUDIT_QUERY: Final = 0x80
AUDIT_EXPORT: Final = 0x81
KEY_CREATE: Final = 0x90
KEY_LIST: Final = 0x91
KEY_REMOVE: Final = 0x92
ACL_EXPLAIN: Final = 0x93
QUOTA_SET: Final = 0x94
QUOTA_CLEAR: Final = 0x95
QUOTA_LIST: Final = 0x96
AUDIT_QUERY_SDK: Final = 0xA0
AUDIT_EXPORT_SDK: Final = 0xA1
ERROR: Final = 0xFF

Dialect = Literal["document", "sdk"]


_RECORD: Final = "topic:str16 partition:i32 offset:u64 timestamp_ms:i64 key_size:i32 value_size:i32"
_DONE: Final = "success:bool message:str16"
_ROWS: Final = "{offset:u64 key:bytes32 value:bytes32}"
_GROUP: Final = "topic:str16 group:str16 members:u32 offsets:{partition:i32 offset:u64}*"
_USER_ASK: Final = "user:str16! password:str16 old_password:str16 roles:str16* enabled:bool"
_USER: Final = "user:str16 roles:str16* permissions:str16* enabled:bool created_s:i64 updated_s:i64"
_KEY: Final = "id:str16 user:str16 name:str16 created_s:i64 expires_s:i64 configured:bool"
_QUOTA: Final = (
    "kind:str8 name:str16 tenant:str16 set:bool publish_bytes_per_second_max:i64 read_bytes_per_second_max:i64 connections_max:i64 "
    "topics_max:i64 storage_bytes_max:i64 connections:i64 topics:i64 storage_bytes:i64 received_bytes:i64 sent_bytes:i64 pauses:i64 "
    "paused_ms:i64 refused:i64 held:bool"
)
_SCHEMA_ROWS: Final = "schemas:{name:str16 type:str8 version:u32}*"
_SCHEMA: Final = "id:str16 topic:str16 version:u32 type:str8 definition:bytes32 compatibility:str8"
_AUDIT_ASK: Final = (
    "start_s:i64 end_s:i64 types:str16{} user:str16 resource:str16 result:str16 search:str16 limit:i32 skip:i32"
)
_EVENT: Final = (
    "id:str16 ts_ms:i64 type:str16 user:str16 client_ip:str16 resource:str16 action:str16 result:str16 node_id:str16 "
    "details:{key:str16 value:str16}*"
)
_EVENT_SDK: Final = (
    "id:str16 ts_ms:i64 type:str16 user:str16 client_ip:str16 resource:str16 action:str16 result:str16 "
    "details:{key:str16 value:str16}*16 node_id:str16"
)


class Operation(NamedTuple):
    """One row. `asks` are the layouts a request may have: the first that fits the payload exactly counts."""

    code: int
    name: str
    about: str
    right: Right
    resource: str  # the field that names what the request is about, for the gate and the audit; or empty
    asks: tuple[str, ...]
    answer: str
    answer_sdk: str  # in the dialect of the published clients; mostly the same
    answer_code: int
    ours: str  # what is not in the document, or which of its open ends this closes


def _op(
    code: int,
    name: str,
    about: str,
    right: Right,
    resource: str,
    ask: str | tuple[str, ...],
    answer: str,
    sdk: str | None = None,
    answer_code: int | None = None,
    ours: str = "",
) -> Operation:
    asks = (ask,) if isinstance(ask, str) else ask
    return Operation(code, name, about, right, resource, asks, answer, sdk or answer, answer_code or code, ours)


_TABLE: Final = (
    _op(PRODUCE, "PRODUCE", "write a message", "write", "topic",
        "topic:str16! key:bytes32 value:bytes32 partition:i32 [producer_id:u64 sequence:u32]", _RECORD,
        ours="producer_id and sequence make a retry idempotent"),
    _op(CONSUME, "CONSUME", "read the message at one offset", "read", "topic",
        "topic:str16! partition:i32 offset:u64", "key:bytes32 value:bytes32"),
    _op(CREATE_TOPIC, "CREATE_TOPIC", "make a topic", "manage", "topic",
        "topic:str16! partitions:i32 [durability:str16 retention_ms:i64 retention_bytes:i64]", _DONE,
        ours="durability (fsync, interval, os) and retention; 0 or empty: as configured"),
    _op(METADATA, "METADATA", "partitions of a topic with their first and next offsets", "read or write", "topic",
        "topic:str16! [make:bool]", "topic:str16 partitions:{id:i32 leader:i32 oldest:u64 newest:u64}*",
        ours="the document names the operation and gives no layout; make: create a topic that is not there, for whoever may read it"),
    _op(SUBSCRIBE, "SUBSCRIBE", "the offset to start at; with partition -1: join the group and get partitions", "read", "topic",
        ("topic:str16! group:str16! partition:i32 mode:str16 [member:str16]",
         "topic:str16! group:str16! partition:i32 mode:str8"),
        "offset:u64 [generation:u32 assigned:{partition:i32 offset:u64}*]",
        ours="partition -1 and its longer answer; published clients send mode as str8; committed means commit"),
    _op(COMMIT, "COMMIT", "store a group's offset", "read", "topic",
        "topic:str16! group:str16! partition:i32 offset:u64 [generation:u32 [txn_id:str16]]", _DONE,
        ours="generation fences members that lost the partition (0: none); txn_id makes it part of a transaction"),
    _op(FETCH, "FETCH", "read a run of messages", "read", "topic",
        "topic:str16! partition:i32 offset:u64 max:i32 [filter:str16 [wait_ms:u32]]",
        "messages:{key:bytes32 value:bytes32 offset:u64}* next_offset:u64",
        sdk=f"messages# next_offset:u64 messages:{_ROWS}+", ours="filter, as published clients send it; wait_ms holds an empty answer back until something comes"),
    _op(LIST_TOPICS, "LIST_TOPICS", "names of the topics one may read or write", "known", "", "", "topics:str16*"),
    _op(DELETE_TOPIC, "DELETE_TOPIC", "delete a topic and all in it", "manage", "topic", "topic:str16!", _DONE),
    _op(CONSUME_ZERO_COPY, "CONSUME_ZERO_COPY", "as CONSUME", "read", "topic",
        "topic:str16! partition:i32 offset:u64", "key:bytes32 value:bytes32"),
    _op(FETCH_BINARY, "FETCH_BINARY", "as FETCH", "read", "topic",
        "topic:str16! partition:i32 offset:u64 max:i32 [filter:str16 [wait_ms:u32]]",
        "messages:{key:bytes32 value:bytes32 offset:u64}* next_offset:u64",
        sdk=f"messages# next_offset:u64 messages:{_ROWS}+"),
    _op(PEEK, "PEEK", "look at messages with all that is known of them", "read", "topic",
        "topic:str16! partition:i32 offset:u64 max:i32 since_ms:i64 filter:str16",
        "messages:{offset:u64 timestamp_ms:i64 expiry_ms:i64 key:bytes32 value:bytes32 origin:str16 "
        "headers:{name:bytes32 value:bytes32}*}* next_offset:u64",
        ours="the whole operation; since_ms (or 0) begins at the first message that is not older"),
    _op(ALTER_TOPIC, "ALTER_TOPIC", "change what a topic promises and how long it keeps messages", "manage", "topic",
        "topic:str16! durability:str16 retention_ms:i64 retention_bytes:i64",
        "partitions:i32 durability:str16 retention_ms:i64 retention_bytes:i64",
        ours="the whole operation; empty and -1: as it is, 0: no limit; the answer is what it is now"),
    _op(PURGE_TOPIC, "PURGE_TOPIC", "remove all messages of a topic; offsets and groups go on", "manage", "topic", "topic:str16!", _DONE,
        ours="the whole operation"),
    _op(MATCH_TOPICS, "MATCH_TOPICS", "names of the topics that match patterns, of those one may read", "known", "",
        "patterns:str16* version:u64", "version:u64 changed:bool topics:str16*",
        ours="the whole operation; shop.* or regex:shop\\.[0-9]+; version (0, or of the last answer): if nothing changed since, no names come"),
    _op(PRODUCE_RECORDS, "PRODUCE_RECORDS", "write messages with keys, headers and times to live", "write", "topic",
        "topic:str16! partition:i32 records:bytes32 [producer_id:u64 sequence:u32 [schema:str16 delay_ms:i64 [txn_id:str16]]]",
        "groups:{partition:i32 offset:u64 count:u32 timestamp_ms:i64}* order:bytes32",
        ours="the whole operation; records is a record set; with schema, delay_ms or txn_id (empty or 0: without) it has one record; "
        "order has the group of each record as u16, and is empty if there is one group"),
    _op(FETCH_RECORDS, "FETCH_RECORDS", "as FETCH, with all that is known of the messages", "read", "topic",
        "topic:str16! partition:i32 offset:u64 max:i32 [filter:str16 [wait_ms:u32]]",
        "next_offset:u64 records:bytes32",
        ours="the whole operation; records is a record set whose numbers are partition << 48 | offset"),
    # -- schemas
    _op(REGISTER_SCHEMA, "REGISTER_SCHEMA", "a new version of a schema", "write", "name",
        ("name:str16! type:str8! schema:bytes32 [compatibility:str8]",
         "name:str16! type:str16! schema:bytes32 [compatibility:str16]"), "name:str16 type:str8 version:u32",
        ours="compatibility: backward (default), forward, full, none; published clients send type as str8"),
    _op(GET_SCHEMA, "GET_SCHEMA", "one version of a schema; 0 is the latest", "read or write", "topic",
        "topic:str16! version:u32", _SCHEMA, sdk=f"{_SCHEMA_ROWS} {_SCHEMA}"),
    _op(LIST_SCHEMAS, "LIST_SCHEMAS", "all versions, of one name or of all", "known", "topic",
        ("[topic:str16]",), _SCHEMA_ROWS),
    _op(VALIDATE_SCHEMA, "VALIDATE_SCHEMA", "does a message fit", "read or write", "name",
        "name:str16! message:bytes32", "valid:bool errors:str16*"),
    _op(PRODUCE_WITH_SCHEMA, "PRODUCE_WITH_SCHEMA", "write a message that must fit its schema", "write", "topic",
        ("topic:str16! schema:str16! data:bytes32 [key:bytes32 partition:i32]",
         "topic:str16! data:bytes32 schema:str16!"),
        _RECORD, ours="both orders that published clients send; key and partition"),
    _op(DELETE_SCHEMA, "DELETE_SCHEMA", "delete a version; 0 deletes all", "manage", "topic",
        "topic:str16! version:u32", _DONE),
    # -- dead letters
    _op(FETCH_DLQ, "FETCH_DLQ", "look at dead letters of a topic", "read", "topic",
        "topic:str16! max:i32 [after:str16]",
        "messages:{id:str16 data:bytes32 error:str16 retries:i32}* "
        "[details:{cause:str16 partition:i32 offset:u64 key:bytes32 died_ms:i64}*]",
        ours="after (the last id seen, or empty) asks for the details too"),
    _op(REPLAY_DLQ, "REPLAY_DLQ", "publish a dead letter again, once", "write", "topic",
        ("topic:str16! message_id:str16! [value:bytes32]", "topic:str16! offset:u64", "topic:str16! ids:str16*"),
        f"{_DONE} [replayed:u32 missing:str16*]",
        ours="value replaces the message's; the offset form is what some published clients send; of many ids (up to 1,000) all or none, those that are not open are missing"),
    _op(PURGE_DLQ, "PURGE_DLQ", "forget all dead letters of a topic", "manage", "topic", "topic:str16!", _DONE),
    _op(DEAD_LETTER, "DEAD_LETTER", "put a message that cannot be processed among the dead letters", "read", "topic",
        "topic:str16! partition:i32 offset:u64 error:str16 [attempts:u32]", _DONE, ours="the whole operation"),
    _op(LIST_DLQ, "LIST_DLQ", "topics that have dead letters, and how many", "known", "", "",
        "topics:{topic:str16 letters:u64}*", ours="the whole operation"),
    # -- later, and not for ever
    _op(PRODUCE_DELAYED, "PRODUCE_DELAYED", "write a message that appears later", "write", "topic",
        "topic:str16! data:bytes32 delay_ms:i64 [key:bytes32 partition:i32]", _RECORD,
        ours="offset in the answer is the handle for CANCEL_DELAYED; key and partition"),
    _op(CANCEL_DELAYED, "CANCEL_DELAYED", "take a delayed message back before it appears", "write", "topic",
        "topic:str16! handle:u64", _DONE, ours="the document names the operation and gives no layout"),
    _op(PRODUCE_WITH_TTL, "PRODUCE_WITH_TTL", "write a message that is not delivered after a time", "write", "topic",
        "topic:str16! data:bytes32 ttl_ms:i64 [key:bytes32 partition:i32]", _RECORD, ours="key and partition"),
    # -- transactions
    _op(TXN_BEGIN, "TXN_BEGIN", "begin a transaction", "known", "",
        ("[transactional_id:str16 [timeout_ms:u32]]",), "txn_id:str16 success:bool",
        ours="transactional_id fences the open transaction of an earlier producer of that name"),
    _op(TXN_COMMIT, "TXN_COMMIT", "make all of it visible at once; may be repeated", "owner", "txn_id",
        "txn_id:str16!", "txn_id:str16 success:bool"),
    _op(TXN_ROLLBACK, "TXN_ROLLBACK", "forget all of it", "owner", "txn_id", "txn_id:str16!", "txn_id:str16 success:bool"),
    _op(TXN_PRODUCE, "TXN_PRODUCE", "write a message in a transaction", "write", "topic",
        "txn_id:str16! topic:str16! data:bytes32 [key:bytes32 partition:i32]", _RECORD,
        ours="key and partition; offset is 0 until the commit"),
    # -- cluster
    _op(CLUSTER_JOIN, "CLUSTER_JOIN", "always answered with ERROR: nodes join by their configuration, not by a request", "admin", "",
        "peer:str16", _DONE),
    _op(CLUSTER_LEAVE, "CLUSTER_LEAVE", "as CLUSTER_JOIN", "admin", "", "", _DONE),
    _op(CLUSTER_STATUS, "CLUSTER_STATUS", "the nodes, which one leads, and what it serves", "known", "", "",
        "cluster_id:str16 node_id:str16 state:str16 nodes:{id:str16 address:str16 role:str16 state:str16}* "
        "topics:u32 partitions:u32",
        ours="the document names the operation and gives no layout"),
    _op(CLUSTER_METADATA, "CLUSTER_METADATA", "which node leads each partition, and its address; no topic: all", "known", "topic",
        ("[topic:str16]",),
        "cluster_id:str16 topics:{topic:str16 partitions:{partition:i32 leader_id:str16 leader_address:str16 epoch:u64 "
        "state:str16 replicas:str16* isr:str16*}*}*",
        ours="not in the document; published clients ask it"),
    # -- groups
    _op(GET_OFFSET, "GET_OFFSET", "a group's committed offset", "read", "topic",
        "topic:str16! group:str16! partition:i32", "offset:u64"),
    _op(RESET_OFFSET, "RESET_OFFSET", "move a group: earliest, latest, offset, timestamp", "read", "topic",
        ("topic:str16! group:str16! partition:i32 mode:str8! [offset:u64]",
         "topic:str16! group:str16! partition:i32 mode:str16! [offset:u64]"), _DONE,
        ours="mode timestamp takes milliseconds in offset; published clients send mode as str8"),
    _op(LIST_GROUPS, "LIST_GROUPS", "the groups one may see", "known", "", "", f"groups:{{{_GROUP}}}*"),
    _op(DESCRIBE_GROUP, "DESCRIBE_GROUP", "one group; no topic: the first of that name", "owner", "group",
        ("topic:str16 group:str16!", "group:str16!"),
        f"{_GROUP} generation:u32 state:str16 owner:str16 assigned:{{member:str16 partition:i32}}*",
        ours="generation, state, owner and assigned"),
    _op(GET_LAG, "GET_LAG", "how far a group is behind, in messages and in time", "read", "topic",
        "topic:str16! group:str16! partition:i32",
        "current:u64 committed:u64 latest:u64 lag:u64 lag_ms:i64",
        ours="lag_ms: age of the oldest message not committed"),
    _op(DELETE_GROUP, "DELETE_GROUP", "forget a group and its offsets; no topic: the first of that name", "owner", "group",
        ("topic:str16 group:str16!", "group:str16!"), _DONE,
        ours="needs the right to read the topic, too"),
    _op(SEEK_TO_TIMESTAMP, "SEEK_TO_TIMESTAMP", "move a group to the first message at or after a time", "read", "topic",
        "topic:str16! group:str16! partition:i32 timestamp_ms:i64", "offset:u64",
        ours="the document names the operation and gives no layout"),
    # -- who
    _op(AUTH, "AUTH", "name and password", "open", "user", "user:str16 password:str16",
        "success:bool error:str16 username:str16 roles:str16*",
        sdk="success:bool username:str16 roles:str8* error:str16", answer_code=AUTH_RESPONSE),
    _op(WHOAMI, "WHOAMI", "who this connection is; success is false before a login", "open", "", "",
        "success:bool username:str16 roles:str16* permissions:str16*"),
    _op(USER_CREATE, "USER_CREATE", "a new user", "admin", "user", _USER_ASK, _USER),
    _op(USER_DELETE, "USER_DELETE", "delete a user", "admin", "user", "user:str16!", "success:bool user:str16"),
    _op(USER_UPDATE, "USER_UPDATE", "set roles, enabled and, if given, password", "admin", "user", _USER_ASK,
        "success:bool user:str16"),
    _op(USER_LIST, "USER_LIST", "all users", "admin", "", "", f"users:{{{_USER}}}*"),
    _op(USER_GET, "USER_GET", "one user", "admin", "user", "user:str16!", _USER),
    _op(ACL_SET, "ACL_SET", "who may use a topic, or with group:NAME a group; a name may end in *", "admin", "topic",
        "topic:str16! public:bool users:str16* roles:str16*", "success:bool topic:str16"),
    _op(ACL_GET, "ACL_GET", "the rule of one name", "admin", "topic", "topic:str16!",
        "topic:str16 exists:bool public:bool default_public:bool users:str16* roles:str16*"),
    _op(ACL_DELETE, "ACL_DELETE", "delete a rule", "admin", "topic", "topic:str16!", "success:bool topic:str16"),
    _op(ACL_LIST, "ACL_LIST", "all rules", "admin", "", "",
        "rules:{topic:str16 exists:bool public:bool users:str16* roles:str16*}* default_public:bool"),
    _op(PASSWORD_CHANGE, "PASSWORD_CHANGE", "one's own password, or as an administrator anybody's", "known", "user",
        _USER_ASK, "success:bool user:str16"),
    _op(ROLE_LIST, "ROLE_LIST", "roles and what they may", "known", "", "",
        "roles:{name:str16 permissions:str16* description:str16}*"),
    _op(KEY_CREATE, "KEY_CREATE", "an API key of one's own, or as an administrator of anybody; its secret comes once", "known", "user",
        "user:str16 name:str16 expires_s:i64", f"{_KEY} secret:str16", ours="the whole operation; no user: oneself"),
    _op(KEY_LIST, "KEY_LIST", "API keys, one's own, or as an administrator anybody's", "known", "user",
        "user:str16 everyone:bool", f"keys:{{{_KEY}}}*", ours="the whole operation"),
    _op(KEY_REMOVE, "KEY_REMOVE", "revoke an API key of one's own, or as an administrator anybody's", "known", "user",
        "user:str16 id:str16!", _DONE, ours="the whole operation"),
    _op(ACL_EXPLAIN, "ACL_EXPLAIN", "whether somebody may publish to, subscribe to or administer a topic, and why", "admin", "topic",
        "who:str16! action:str8 topic:str16!",
        "allowed:bool kind:str16 name:str16 steps:{topic:str16 rule:str16 outcome:str16 why:str16}*",
        ours="the whole operation"),
    _op(QUOTA_SET, "QUOTA_SET", "what a user or a tenant may have: -1 as configured, 0 no limit; what is not named stays", "admin", "name",
        "kind:str8! name:str16! changes:{quota:str16 value:i64}* [tenant:str16]", _QUOTA,
        ours="the whole operation; tenant: whom a user counts for, too"),
    _op(QUOTA_CLEAR, "QUOTA_CLEAR", "forget what was set for a user or a tenant", "admin", "name", "kind:str8! name:str16!", _QUOTA,
        ours="the whole operation"),
    _op(QUOTA_LIST, "QUOTA_LIST", "who has quotas, and what each uses", "admin", "", "", f"quotas:{{{_QUOTA}}}*",
        ours="the whole operation"),
    # -- audit
    _op(AUDIT_QUERY, "AUDIT_QUERY", "who did what", "admin", "", _AUDIT_ASK.format("*"),
        f"events:({{{_EVENT}}})* total:i32 more:bool", ours="not in the document; published clients ask it"),
    _op(AUDIT_EXPORT, "AUDIT_EXPORT", "the same as a json or csv text", "admin", "",
        f"query:({{{_AUDIT_ASK.format('*')}}}) format:str16", "format:str16 data:bytes32",
        ours="not in the document; published clients ask it"),
    _op(AUDIT_QUERY_SDK, "AUDIT_QUERY_SDK", "as AUDIT_QUERY, as other published clients lay it out", "admin", "",
        _AUDIT_ASK.format("*16"), f"total:u32 more:bool events:{{{_EVENT_SDK}}}*", ours="not in the document"),
    _op(AUDIT_EXPORT_SDK, "AUDIT_EXPORT_SDK", "as AUDIT_EXPORT, as other published clients lay it out", "admin", "",
        f"{_AUDIT_ASK.format('*16')} format:str16", "format:str16 data:bytes32", ours="not in the document"),
)  # fmt: skip

OPERATIONS: Final = {operation.code: operation for operation in _TABLE}
ERROR_LAYOUT: Final[dict[Dialect, str]] = {"document": "success:bool message:str16", "sdk": "code:i32 message:str16"}

NAMES: Final = {code: operation.name for code, operation in OPERATIONS.items()} | {
    AUTH_RESPONSE: "AUTH_RESPONSE",
    ERROR: "ERROR",
}

# What is written down when it succeeds; changes of users and access rules write themselves down.
AUDITED: Final = {
    CREATE_TOPIC: "topic.create", DELETE_TOPIC: "topic.delete", ALTER_TOPIC: "topic.alter", PURGE_TOPIC: "topic.purge",
    DELETE_GROUP: "group.delete",
    REGISTER_SCHEMA: "schema.register", DELETE_SCHEMA: "schema.delete",
    RESET_OFFSET: "offset.reset", SEEK_TO_TIMESTAMP: "offset.reset",
}  # fmt: skip
