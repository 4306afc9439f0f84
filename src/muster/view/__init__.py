"""The inspector: one local page over run folders that are only read.

`growing` follows files that are being written, `foreign` reads other trainers' folders, `run_view` answers
the page's questions about one run, `server` puts them behind a guard, `export` packs them into one file.
"""
