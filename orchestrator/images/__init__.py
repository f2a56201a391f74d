"""Container images: references to them, and the tokens with which runners pull them."""
