"""The Responses API's own part in the supervisor: what it remembers, and what goes on without a client."""
