"""Records of a step: inputs, outputs, parameters and gradients of modules and operators, a row each."""
