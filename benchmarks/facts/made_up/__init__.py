"""Made-up data and tiny models, in the formats that public trainings read."""
