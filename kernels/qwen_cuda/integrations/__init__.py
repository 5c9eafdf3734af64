"""The operators inside other people's models."""
