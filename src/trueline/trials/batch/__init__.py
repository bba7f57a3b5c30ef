"""Laws that the loss and the gradients of a first step obey, as its batch or its weights are changed."""
