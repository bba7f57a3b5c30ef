"""What the checks say of a Run, in the forms that continuous integration shows."""
