"""What is found and measured while a job runs, passed on to where people look. Never imports torch, but TensorBoard's
writer.
"""
