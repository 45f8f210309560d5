"""A PTX program as data: parsed, with its variables and where its addresses come from."""
