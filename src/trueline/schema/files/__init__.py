"""Files that people edit, or that say whose a Run is."""
