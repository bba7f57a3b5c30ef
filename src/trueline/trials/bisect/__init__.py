"""Since which commit or release a job shows a finding."""
