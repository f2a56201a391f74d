"""Git repositories of projects: mirrors on the disk, their content, and `git upload-pack` for clients.

`mirrors` keeps the bare mirrors, `contents` reads them, `upload_pack` serves them. Only `git` starts git.
"""
