"""Results as text, tables, charts and pages. Runs no analysis."""
