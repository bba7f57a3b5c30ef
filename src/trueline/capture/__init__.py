"""Watches a model while it trains and hands what it measured to the Sink it was given."""
