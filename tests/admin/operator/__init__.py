"""An operator's eighteen jobs in a real browser, on a site with 300,000 tasks, a real worker and an incident."""
