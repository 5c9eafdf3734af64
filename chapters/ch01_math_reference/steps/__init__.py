"""Chapter 1's ladder: three ways to generate the same tokens, each one idea apart."""
