"""Is it the same job? What differs between the environments, configurations, data and models of two."""
