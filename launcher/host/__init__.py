"""What this machine and its kernel tell and allow; nothing here knows of a job."""
