"""What happens next: pure functions of (state, event, now). Nothing here reads a clock, a file or a process."""
