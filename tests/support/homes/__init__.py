"""What a server keeps in its home: rows, versions, jobs, models, and homes of earlier releases."""
