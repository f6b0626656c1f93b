"""Schema numbers of what is on disk, and the migrations that bring files of earlier releases up to this one.

They are here because client and server both have such files, and this folder is the only one that both may import.
"""

from trainer_server.wire.schemas.database import DatabaseSchema, Migration, script
from trainer_server.wire.schemas.record import RecordMigration, RecordSchema

__all__ = ["DatabaseSchema", "Migration", "RecordMigration", "RecordSchema", "script"]
