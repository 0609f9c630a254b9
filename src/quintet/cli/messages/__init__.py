"""Commands about messages: publish, subscribe, tail, caches, dead letters, transactions, peers."""
