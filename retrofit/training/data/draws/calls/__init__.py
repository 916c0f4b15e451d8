"""Calls that draw a batch by themselves: functions that are told how many samples, and objects that were told."""
