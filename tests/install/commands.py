"""Every command of `quintet` with one real use, in an order in which each finds what it needs, and what a bare install says.

The fields: the command, its arguments, and what comes of it. WORKS: exit code 0. ANSWERS: exit code 1 and the broker's refusal in
a line, since what is asked for is not there. Anything else is the extra that the one line must name.
"""

from typing import Final, NamedTuple

WORKS: Final = "works"
ANSWERS: Final = "answers"


class Use(NamedTuple):
    command: str
    arguments: tuple[str, ...]
    outcome: str = WORKS


FELIX: Final = ("--url", "{felix}")
PEER: Final = ("--url", "{peer}")
FLIGHT: Final = ("--url", "{flight}")
DATA: Final = ("--data", "{data}")

USES: Final = (
    Use("topic create", ("{topic}", "--partitions", "1")),
    Use("topic list", ()),
    Use("topic describe", ("{topic}",)),
    Use("topic alter", ("{topic}", "--retention", "1d")),
    Use("pub", ("{topic}", "hello")),
    Use("sub", ("{topic}", "--group", "g", "--from", "earliest", "--count", "1")),
    Use("tail", ("{topic}", "--from", "earliest", "-n", "1")),
    Use("group list", ()),
    Use("group describe", ("g",)),
    Use("group lag", ("g",)),
    Use("group reset", ("g", "--to", "earliest")),
    Use("group delete", ("g", "--yes")),
    Use("schema register", ("s", "{home}/schema.json")),
    Use("schema list", ()),
    Use("schema get", ("s",)),
    Use("schema compat", ("s",)),
    Use("schema validate", ("s", '{{"n": 1}}')),
    Use("schema delete", ("s", "--yes")),
    Use("dlq send", ("{topic}", "0", "0")),
    Use("dlq list", ()),
    Use("dlq show", ("{topic}", "0-0")),
    Use("dlq replay", ("{topic}", "--all", "--dry-run")),
    Use("dlq purge", ("{topic}", "--yes")),
    Use("txn begin", ()),
    Use("txn produce", ("1", "{topic}", "x"), ANSWERS),
    Use("txn commit", ("1",), ANSWERS),
    Use("txn rollback", ("1",), ANSWERS),
    Use("txn run", ("{home}/lines.jsonl",)),
    Use("user create", ("ann", "--role", "producer", "--password-file", "{home}/password")),
    Use("user list", ()),
    Use("user update", ("ann", "--role", "consumer")),
    Use("user password", ("ann", "--password-file", "{home}/password")),
    Use("user key add", ("ann",)),
    Use("user key list", ("ann",)),
    Use("user key remove", ("qk_00000000", "--yes"), ANSWERS),
    Use("user delete", ("ann", "--yes")),
    Use("acl set", ("{topic}", "--public")),
    Use("acl get", ("{topic}",)),
    Use("acl list", ()),
    Use("acl explain", ("admin", "publish", "{topic}")),
    Use("acl delete", ("{topic}", "--yes")),
    Use("role list", ()),
    Use("topic purge", ("{topic}", "--yes")),
    Use("topic delete", ("{topic}", "--yes")),
    Use("status", ("--admin", "{admin}", "--interval", "0.1")),
    Use("top", ("--admin", "{admin}", "--interval", "0.2")),
    Use("doctor", ("--dev", *DATA), "server"),
    Use("upgrade", ("--check", *DATA), "server"),
    Use("conn list", ("--console", "http://127.0.0.1:1"), ANSWERS),
    Use("conn show", ("127.0.0.1:2", "--console", "http://127.0.0.1:1"), ANSWERS),
    Use("conn kick", ("127.0.0.1:2", "--yes", "--console", "http://127.0.0.1:1"), ANSWERS),
    Use("explain", ("{topic}", "0", "--console", "http://127.0.0.1:1"), ANSWERS),
    Use("peer list", PEER),
    Use("peer send", (*PEER, "bob", '{{"n": 1}}')),
    Use("peer broadcast", (*PEER, '"lunch?"')),
    Use("peer listen", (*PEER, "--timeout", "0.2")),
    Use("peer stdio", (*PEER, "--linger", "0.1")),
    Use("mcp", PEER, "mcp"),
    Use("kv put", (*FELIX, "k", "v"), "felix"),
    Use("kv get", (*FELIX, "k"), "felix"),
    Use("kv incr", (*FELIX, "n"), "felix"),
    Use("kv watch", (*FELIX, "--timeout", "0.2"), "felix"),
    Use("kv del", (*FELIX, "k"), "felix"),
    Use("serve", ("--dev", *DATA), "server"),
    Use("config init", (), "server"),
    Use("config reference", (), "server"),
    Use("config validate", (), "server"),
    Use("config show", (), "server"),
    Use("config explain", ("listeners.blipmq.port",), "server"),
    Use("token mint", ("--dev", "--sub", "ann", "--queue-key", "k1"), "server"),
    Use("token inspect", ("--dev", "eyJhbGciOiJIUzI1NiJ9.e30.c2ln"), "server"),
    Use("token keygen", ("--out", "{home}/keys"), "server"),
    Use("audit head", DATA, "server"),
    Use("audit tail", DATA),
    Use("audit verify", DATA, "server"),
    Use("log verify", ("{data}",), "server"),
    Use("log dump", ("{data}",), "server"),
    Use("log repair", ("{data}",), "server"),
    Use("backup create", ("{home}/backups", *DATA), "server"),
    Use("backup list", ("{home}/backups",)),
    Use("backup verify", ("{home}/backups",), "server"),
    Use("backup prune", ("{home}/backups", "--keep", "1", "--yes"), "server"),
    Use("restore", ("{home}/backups", "--data", "{home}/restored"), "server"),
    Use("pipeline list", ()),
    Use("pipeline run", ("audit",), "spark"),
    Use("pipeline status", FLIGHT, "flight"),
    Use("pipeline stop", (*FLIGHT, "x"), "flight"),
    Use("spark sql", ("select 1",), "spark"),
    Use("spark convert", ("{home}/none",), "lake"),
    Use("spark notebook", (*FLIGHT, "{topic}", "-o", "{home}/page.py"), "notebook"),
    Use("bench doors", ()),
    Use("bench pub", ("{blip}", "--count", "100"), "bench"),
    Use("bench e2e", ("{blip}", "--count", "100"), "bench"),
    Use("bench fanout", ("{blip}", "--count", "100"), "bench"),
    Use("health", ("--admin", "127.0.0.1:1"), ANSWERS),
    Use("profile add", ("p", "--url", "{blip}", "--store", "file")),
    Use("profile list", ()),
    Use("profile show", ("p",)),
    Use("profile use", ("p",)),
    Use("profile remove", ("p",)),
    Use("protocol flymq", ()),
    Use("completion", ("bash",)),
)
