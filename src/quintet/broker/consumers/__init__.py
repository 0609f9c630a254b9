"""Knows who reads what and how far they are: consumer groups, their members, durable subscriptions."""
