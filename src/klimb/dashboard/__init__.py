"""Pages that show studies: live from a server, or as one file to send.

data.py      a study file -> plain numbers and words, and what is new since the last look
folder.py    which studies there are, the films beside them, comparison over seeds
report.py    the page with its data in it, one HTML file
server.py    the page, live; telling an episode
page/        HTML, style sheet and scripts, the same for both
"""
