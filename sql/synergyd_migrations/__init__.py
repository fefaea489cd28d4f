"""Schema migrations (alembic) and the SQL of reports."""
