"""What a step computes: inputs, outputs, parameters and gradients of modules and operators, as rows of a record."""
