"""The pages of organizations and what belongs to them, and of users."""
