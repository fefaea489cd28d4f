"""The documents: links, command lines, generated pages. None of these tests needs what builds the site."""
