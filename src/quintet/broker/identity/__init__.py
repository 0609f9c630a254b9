"""Knows who is asking and what they may do: users, keys, tokens, tenants, access rules. No topics' contents."""
