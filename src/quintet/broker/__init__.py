"""Holds what every protocol shares: topics, rights, subscriptions and their verbs. No sockets, no clock, no wire format."""
