"""The broker: topics, rights, subscriptions and the verbs every door uses. No sockets, no clock, no protocol's bytes."""
