"""`saiserve bench`: how fast a model is on this machine, as a client has it, beside llama-server if one is named."""
