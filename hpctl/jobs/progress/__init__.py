"""What the ranks say of their progress, and what their silence means.

`listen.listen` gives them a socket, `readers` reads the file and log forms, `book.Book` keeps what
was said and judges it. The ranks' side is `hpctl.progress`.
"""
