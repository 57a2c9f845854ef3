"""Environments of Gymnasium and BrowserGym, unchanged, each in a worker process."""
