"""An LLM server whose nodes find each other and route for themselves."""
