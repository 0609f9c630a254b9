"""Peers among agents: `quintet.peer`, the pipe for programs, the MCP server."""
