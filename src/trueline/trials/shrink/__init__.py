"""The smallest job that still shows a finding."""
