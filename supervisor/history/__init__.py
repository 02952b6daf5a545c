"""What was said: responses and conversations, kept in the state database.

They outlive workers, models and the supervisor itself.
"""
