"""FlyMQ: one request, one reply; partitions, groups, schemas, transactions, users. See README.md in this folder."""
