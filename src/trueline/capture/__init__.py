"""Watching a training process: adapters see the gradients, probes measure them, the recorder hands rows to sinks."""
