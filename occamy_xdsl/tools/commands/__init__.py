"""The commands of `occamy`, one a file; heavy imports wait until a command runs."""
