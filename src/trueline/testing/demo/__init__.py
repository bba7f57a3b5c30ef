"""The demo: a small causal LM fine-tuned on local workers under six settings, each leaving a Run."""
