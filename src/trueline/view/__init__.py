"""Runs and Findings made visible; owns no analysis."""
