"""Rows on their way to disk and back: journals, sealed parts, and how they survive a crash."""
