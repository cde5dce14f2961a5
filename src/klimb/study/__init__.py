"""Studies: learning whose every episode is kept in one SQLite file.

study.py      Study: create, ask, tell, status, run
learners.py   what a study asks of a learner: klimb's own, and baselines by ask and tell
acting.py     learners that act step by step, recorded
file.py       the file: schema, migrations, transactions, what can be wrong with it
settings.py   what a study is created with, checked
bounds.py     samples that must stay inside bounds
tables.py     episodes as CSV, JSON lines or Parquet
"""

from klimb.study.file import StudyError
from klimb.study.study import Episode, Status, Study

__all__ = ["Episode", "Status", "Study", "StudyError"]
