"""The claims of the published study, its measurements, and what the evidence makes of them.

from lib import ledger
ledger.headline()            # the claims that carry the article, as a DataFrame
ledger.table()               # all of them
ledger.tested_by("02")       # id, claim and verdict of those that a notebook shows
"""

from lib.ledger.claims import file_of, get, headline, load, page, sections, table, tested_by

__all__ = ["file_of", "get", "headline", "load", "page", "sections", "table", "tested_by"]
