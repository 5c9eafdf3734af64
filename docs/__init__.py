"""The pages that belong to no chapter, and `docs.hooks`, which builds the site from them."""
