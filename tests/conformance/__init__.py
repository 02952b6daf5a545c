"""`make conformance`: tools that others wrote judge the APIs of a running supervisor."""
