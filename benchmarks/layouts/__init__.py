"""Trainings on meshes of ranks with several axes, watched and not, with and without planted faults."""
