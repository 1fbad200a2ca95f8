"""Estimates of training on the card: resources, time, memory and power, from the analysed synthesis source."""
