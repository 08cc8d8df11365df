"""What is shown of studies: rows (listing, view), report.json (build), HTML pages (page, html)."""
