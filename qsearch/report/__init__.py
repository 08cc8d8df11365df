"""Views of studies: state (view), trials (trial_table), report.json (build), HTML pages."""
