"""Commands about what a broker holds: topics, groups, schemas, users, tokens, its configuration."""
