"""Answers that outlive client and coordinator: kept on disk, read again, ended in time."""
