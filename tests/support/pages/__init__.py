"""The pages of the documentation as programs: their code blocks, and what runs them."""
