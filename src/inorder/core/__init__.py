"""The broker as a pure state machine: no clock, no thread, no file, no socket."""
