"""The three loops beside the web processes: scheduler, dispatcher and housekeeping."""
