"""Serves the web console: a page, an API in JSON over the broker's verbs, and live figures by server-sent events (ADR 36)."""
