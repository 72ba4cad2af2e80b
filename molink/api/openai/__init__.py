"""OpenAI's endpoints: completions and chat completions."""
