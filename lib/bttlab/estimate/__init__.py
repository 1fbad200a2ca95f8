"""What the card would take: schedule, resources, time and power, from what the synthesis source is shown to be."""
