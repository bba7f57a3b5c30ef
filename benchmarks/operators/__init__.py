"""Which kernels of torch are worse in bfloat16 than their sum allows."""
