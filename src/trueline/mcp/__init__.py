"""What coding agents ask of Runs through the Model Context Protocol: `trueline mcp`."""
